"""Parametrizations: a table of how initial values and rates of parameters change with a model's width.

A line is a pattern of parameters' paths and two exponents of r = base width / width: of what multiplies a parameter
when it is drawn, and its rate in every step. For Adam a factor in front of a parameter is the same as that factor in
its initial value and in its rate (Yang et al. 2022, "Tensor Programs V", lemma J.1): so no model has multipliers.
"""

import re
from typing import Any, NamedTuple

import jax

from attention_jax.ops.stacking import layer_axes


class Line(NamedTuple):
    """What the parameters whose path a pattern finds are multiplied by when they are drawn, and in their rate.

    In the table these are exponents of r; of a model, the factors.
    """

    pattern: str
    values: float
    rate: float


Lines = tuple[Line, ...]

# Table 8, beside models whose matrices are drawn with variance ~ 1/width and whose embeddings are multiplied by √width.
MUP: Lines = (
    Line(r"^embedding/embedding$", 0, 1 / 2),  # input: √width times it moves by as much at every width
    Line(r"^encoding/|/encoding/", 0, 0),
    Line(r"attention/query$", 1 / 2, 3 / 2),  # a hidden matrix, with √r: scores are qᵀk / d and not qᵀk / √d
    Line(r"attention/(key|value|out)$", 0, 1),  # hidden
    Line(r"feed_forward/(hidden|gate|out)/kernel$", 0, 1),
    Line(r"^logits/kernel$", 1 / 2, 1),  # output: variance ~ 1/width²
)
# Logits by the embedding's own matrix: their multiplier is in the norm before them, which nothing else reads.
TIED: Lines = (Line(r"^last_norm/", 1 / 2, 1 / 2),)

PARAMETRIZATIONS: dict[str, Lines] = {"standard": (), "mup": MUP}
ELEMENTWISE = ("adam", "adamw", "lion")  # optimizers whose steps are as long however large the gradient is


def lines_of(name: str, ratio: float, is_tied: bool) -> Lines:
    """The lines of a model of which base width / width is `ratio`; none for the standard parametrization."""
    lines = PARAMETRIZATIONS[name]
    chosen = (*lines, *TIED) if lines and is_tied else lines
    return tuple(Line(line.pattern, ratio**line.values, ratio**line.rate) for line in chosen)


def line_of(path: tuple, lines: Lines) -> Line | None:
    """The first line that finds a parameter, by its path in the tree of parameters."""
    name = _name(path)
    return next((line for line in lines if re.search(line.pattern, name)), None)


def drawn(params: Any, lines: Lines) -> Any:
    """Fresh parameters, each times its line's factor of values."""

    def scaled(path, param):
        line = line_of(path, lines)
        return param if line is None else (param * line.values).astype(param.dtype)

    return jax.tree_util.tree_map_with_path(scaled, params)


def unknown(params: Any, lines: Lines) -> list[str]:
    """The paths of matrices that no line finds; vectors without one are biases and gains, the same at every width."""
    return [
        _name(path)
        for path, leaf in jax.tree_util.tree_leaves_with_path(params)
        if leaf.ndim - layer_axes(path) > 1 and line_of(path, lines) is None
    ]


def _name(path: tuple) -> str:
    return "/".join(str(part.key) for part in path)
