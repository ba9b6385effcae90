"""What each head of a translator looks at, and how many heads have a role."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from attention_jax.data.sentences import Sentences
from attention_jax.evaluation.alignment import alignment_error_rate
from attention_jax.evaluation.roles import chance_of_rarest, positional_share, rarest_share
from attention_jax.tasks.heads.gating import Sizes
from attention_jax.tasks.heads.session import Texts
from attention_jax.tasks.translation.translating import Trained, attention

PLACES = {"previous": -1, "itself": 0, "next": 1}  # relative positions by name; all others are "elsewhere"
ROLES = {"positional": ("encoder", "decoder"), "rare": ("encoder",), "aligned": ("cross",)}  # whose heads can have them
Looks = dict[str, dict[str, np.ndarray]]  # of a role, by kind: [layers, heads]


def looks_of(trained: Trained, sizes: Sizes, texts: Texts) -> Looks:
    """What tells the roles of all heads, on some sentences, teacher forced.

    "positional": the share of tokens at the head's relative position, which is "place"; "rare": that on the rarest
    token; "aligned": the alignment error rate, if the true alignments are known.
    """
    maps = attention(trained, texts.source, texts.target)
    counts, alignments = source_counts(trained, texts.source), texts.alignments

    def each(role: str, measure: Callable[[str, list[np.ndarray]], Any]) -> dict[str, np.ndarray]:
        return {
            kind: np.array(
                [[measure(kind, [of[kind][at] for of in maps]) for at in layer] for layer in _indices(shape)]
            )
            for kind, shape in sizes.items()
            if kind in ROLES[role]
        }

    at_places = each("positional", lambda kind, of_head: positional_share(of_head, is_causal=kind == "decoder"))
    looks = {
        "positional": {kind: found[..., 0] for kind, found in at_places.items()},
        "place": {kind: found[..., 1] for kind, found in at_places.items()},
        "rare": each("rare", lambda _, of_head: rarest_share(of_head, counts)),
    }
    if alignments is not None:
        looks["aligned"] = each(
            "aligned", lambda _, of_head: alignment_error_rate([matrix[:-1] for matrix in of_head], alignments)
        )
    return looks


def count_roles(looks: Looks, thresholds: Mapping[str, float]) -> dict[str, Any]:
    """How many heads of each kind have a role, and how many of the positional ones look where."""
    has = {
        role: {
            kind: found <= thresholds[role] if role == "aligned" else found >= thresholds[role]
            for kind, found in of_kinds.items()
        }
        for role, of_kinds in looks.items()
        if role in ROLES
    }
    counts: dict[str, Any] = {
        role: {kind: float(found.sum()) for kind, found in of.items()} for role, of in has.items()
    }
    named = {kind: looks["place"][kind][found] for kind, found in has["positional"].items()}
    counts["places"] = {
        kind: {name: float((places == at).sum()) for name, at in PLACES.items()}
        | {"elsewhere": float((~np.isin(places, [*PLACES.values()])).sum())}
        for kind, places in named.items()
    }
    return counts


def chances(trained: Trained, texts: Texts) -> dict[str, float]:
    """What heads that know nothing reach: "rare" of one that looks anywhere, "aligned" of one on the diagonal."""
    found = {"rare": chance_of_rarest(source_counts(trained, texts.source))}
    if texts.alignments is not None:
        sides = zip(texts.target.lengths, texts.source.lengths, strict=True)
        found["aligned"] = alignment_error_rate([np.eye(t, s)[:-1] for t, s in sides], texts.alignments)
    return found


def source_counts(trained: Trained, source: Sentences) -> list[np.ndarray]:
    """How often each token of each sentence is in the source of the training pairs."""
    training = np.bincount(trained.corpus.splits["train"].source.tokens, minlength=trained.corpus.source.size)
    return [training[source[index]] for index in range(len(source))]


def _indices(shape: Sequence[int]) -> list[list[tuple[int, int]]]:
    layers, heads = shape
    return [[(layer, head) for head in range(heads)] for layer in range(layers)]
