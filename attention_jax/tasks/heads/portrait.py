"""The page of one text: every head's map of it, and what is written when that head is removed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from attention_jax.files import write_whole
from attention_jax.reports.heads_page import HeadMaps, Written, heads_page
from attention_jax.tasks.heads.gating import by_kind, count, one_removed

CAPTIONS = {
    "encoder": "The encoder's attention of the source to itself.",
    "decoder": "Attention of what is written to what was read before; a row is the word that comes next.",
    "cross": "Attention of what is written to the source.",
}


class Portrait(NamedTuple):
    """What the first seed's heads do with one text.

    `words` and `maps` are by kind: the words of queries and keys, and weights `[layers, heads, Q, K]`. `written` is
    what the model writes with every head, then without each, in the order of gates in a row.
    """

    title: str
    words: Mapping[str, tuple[Sequence[str], Sequence[str]]]
    maps: dict[str, np.ndarray]
    written: Sequence[Written]


def write_page(session: Any, path: Path) -> None:
    """Write the page of a session's text: without a server or a network, with everything computed before."""
    sizes, variables = session.sizes, session.variables[0]
    gates = one_removed(count(sizes))
    portrait: Portrait = session.portrait(gates)
    means = session.losses(variables, session.batches("split"), gates).means
    rises, removed = by_kind(means[1:] - means[0], sizes), by_kind(np.arange(count(sizes)), sizes)
    kinds = [
        HeadMaps(
            kind,
            CAPTIONS[kind],
            *portrait.words[kind],
            portrait.maps[kind],
            [[portrait.written[1 + head] for head in layer] for layer in removed[kind].tolist()],
            rises[kind],
        )
        for kind in sizes
    ]
    said = (f"The run's first seed; losses are those of its {session.measured_on}, {means[0]:.3f} as a whole.",)
    write_whole(path, heads_page(portrait.title, portrait.written[0], kinds, said))
