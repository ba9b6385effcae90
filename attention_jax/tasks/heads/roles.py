"""What each head looks at, and how many heads have a role."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from attention_jax.evaluation.alignment import Alignments, alignment_error_rate
from attention_jax.evaluation.roles import positional_share, rarest_share
from attention_jax.tasks.heads.gating import Sizes
from attention_jax.tasks.heads.session import Looks

OFFSETS = {"previous": -1, "itself": 0, "next": 1}  # relative positions by name; all others are "other"
ROLES = {"positional": ("encoder", "decoder"), "rare": ("encoder",), "aligned": ("cross",)}  # whose heads can have them
Maps = Sequence[Mapping[str, np.ndarray]]  # of texts, by kind: [layers, heads, queries, keys]


def looks_of(
    maps: Maps, sizes: Sizes, counts: Sequence[np.ndarray] = (), alignments: Alignments | None = None
) -> Looks:
    """What tells the roles of all heads, by the weights of every layer and head on some texts, teacher forced.

    "positional": the share of tokens at the head's relative position, which is "offset"; "rare": that on the rarest
    token by the `counts` of an encoder's tokens; "aligned": the alignment error rate, if true `alignments` are known.
    """

    def each(role: str, measure: Callable[[str, list[np.ndarray]], Any]) -> dict[str, np.ndarray]:
        return {
            kind: np.array([[measure(kind, [of[kind][at] for of in maps]) for at in row] for row in _indices(shape)])
            for kind, shape in sizes.items()
            if kind in ROLES[role]
        }

    def error(kind: str, of_head: list[np.ndarray]) -> float:
        return alignment_error_rate([weights[:-1] for weights in of_head], alignments or ())

    at_offsets = each("positional", lambda kind, of_head: positional_share(of_head, is_causal=kind == "decoder"))
    looks = {
        "positional": {kind: found[..., 0] for kind, found in at_offsets.items()},
        "offset": {kind: found[..., 1] for kind, found in at_offsets.items()},
        "rare": each("rare", lambda kind, of_head: rarest_share(of_head, counts)),
    }
    return looks if alignments is None else looks | {"aligned": each("aligned", error)}


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
    named = {kind: looks["offset"][kind][found] for kind, found in has["positional"].items()}
    counts["offsets"] = {
        kind: {name: float((offsets == at).sum()) for name, at in OFFSETS.items()}
        | {"other": float((~np.isin(offsets, [*OFFSETS.values()])).sum())}
        for kind, offsets in named.items()
    }
    return counts


def _indices(shape: Sequence[int]) -> list[list[tuple[int, int]]]:
    layers, heads = shape
    return [[(layer, head) for head in range(heads)] for layer in range(layers)]
