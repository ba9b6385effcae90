"""A trained run, opened: what runs of all tasks have in common, and the loss without each of a model's heads."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np
from jaxtyping import Float
from ml_collections import ConfigDict

from attention_jax.errors import UserError
from attention_jax.evaluation.statistics import RESAMPLES, resampled_sums
from attention_jax.evaluation.translation import Batches
from attention_jax.modules.attention import Edit, Edits
from attention_jax.tasks.heads.gating import RowLoss, gated_losses, one_removed
from attention_jax.training.saved import Init, best_variables, last_variables
from attention_jax.training.state import Variables

# which → a function that restores each seed's variables.
WHICH: dict[str, Callable[..., list[Variables]]] = {
    "best": best_variables,
    "last": lambda *saved: [found[0] for found in last_variables(*saved, count=1)],
}


@dataclasses.dataclass(frozen=True)
class Opened:
    """A trained run: `config`, `session` (data and programs), and the variables: `which` ("best", "last") and `seed`.

    `run` is the run's folder, which is only read.
    """

    config: ConfigDict
    run: Any
    session: Any
    which: str
    seed: int

    def __post_init__(self):
        if self.which not in WHICH:
            raise UserError(f"which={self.which!r}: choose one of {', '.join(WHICH)}.")
        if self.seed not in self.config.seeds:
            seeds = ", ".join(map(str, self.config.seeds))
            raise UserError(f"seed={self.seed}: {self.folder} has the seeds {seeds}. Choose one of them.")

    @property
    def folder(self) -> Path:
        return self.run.path

    @property
    def result(self) -> dict[str, Any] | None:
        """The contents of result.json; None if the run is not finished."""
        return self.run.result()

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl: `step`, `seed`, `seconds` and the metrics."""
        return self.run.metrics()

    @property
    def sizes(self) -> dict[str, tuple[int, int]]:
        """How many layers and heads each kind of the model's attention has."""
        raise NotImplementedError

    def edited(self, edits: Edits) -> dict[str, Edit]:
        """The edits, as an argument of a program. Raises UserError where the model has no such attention or heads."""
        for kind, edit in edits.items():
            layers, heads = require_kind(self.sizes, kind)
            for name in ("gate", "replaced"):
                array = getattr(edit, name)
                if array is not None and np.shape(array) != (layers, heads):
                    raise UserError(
                        f"edits[{kind!r}].{name}: has the shape {np.shape(array)}; it needs [layers, heads], which are "
                        f"({layers}, {heads})."
                    )
            _require_whole(f"edits[{kind!r}]", edit, layers, heads)
        return dict(edits)

    def restored(self, init: Init, vocabulary: str) -> Variables:
        """The variables. Raises UserError if there are none, or if they are of another vocabulary."""
        of_seeds = WHICH[self.which](self.config, self.folder, init, vocabulary)
        return of_seeds[self.config.seeds.index(self.seed)]


def _require_whole(name: str, edit: Edit, layers: int, heads: int) -> None:
    """Raise UserError for an edit that says half of what is replaced, or has other layers or heads than the model."""
    given = {part: np.shape(array) for part in ("weights", "outputs") if (array := getattr(edit, part)) is not None}
    if given and edit.replaced is None:
        raise UserError(f"{name}.replaced: is missing, and {' and '.join(given)} are of the heads that it chooses.")
    if edit.replaced is not None and not given:
        raise UserError(f"{name}.replaced: chooses heads, and there are no weights or outputs to put in their place.")
    for part, shape in given.items():
        if len(shape) != 5 or (shape[0], shape[2]) != (layers, heads):
            raise UserError(
                f"{name}.{part}: has the shape {shape}; it needs [{layers} layers, batch or 1, {heads} heads, "
                "queries, keys or features]."
            )


class Removed(NamedTuple):
    """The loss of the `whole` model, and `losses` without each head, in nats a target token.

    `change` is the difference; `low` and `high` are its 95% interval, over resamples of the sentences; NaN of one.
    """

    whole: float
    losses: Float[np.ndarray, "layers heads"]
    change: Float[np.ndarray, "layers heads"]
    low: Float[np.ndarray, "layers heads"]
    high: Float[np.ndarray, "layers heads"]


def without_each_head(
    loss: RowLoss, variables: Variables, batches: Batches, kind: str, layers: int, heads: int
) -> Removed:
    """The loss without each head of one kind of attention, and with all heads, on the same sentences.

    A gate of 0 on its output removes a head (Michel et al. 2019, §2.2). Gates are arrays, so that one compiled program
    tries all heads.
    """
    measured = gated_losses(loss, {kind: (layers, heads)})
    nats, tokens = measured(variables, batches, one_removed(layers * heads))
    worse = nats[1:] - nats[0]
    *sums, counts = resampled_sums(np.concatenate([worse, tokens[None]]).T, RESAMPLES).T
    low, high = np.quantile(np.array(sums) / counts, [0.025, 0.975], axis=1)
    if len(tokens) < 2:
        low, high = np.full_like([low, high], np.nan)
    of_heads = nats[1:].sum(1) / tokens.sum(), worse.sum(1) / tokens.sum(), low, high
    return Removed(float(nats[0].sum() / tokens.sum()), *(column.reshape(layers, heads) for column in of_heads))


def sizes_of(model: nn.Module, variables: Variables, *texts: Any) -> dict[str, tuple[int, int]]:
    """How many layers and heads each kind of a model's attention has."""
    shapes: Any = jax.eval_shape(lambda held: model.apply(held, *texts, method="attention"), variables)
    return {kind: heads.weights.shape[1:3] for kind, heads in shapes.items()}


def require_kind(sizes: Mapping[str, tuple[int, int]], kind: str) -> tuple[int, int]:
    """How many layers and heads one kind of attention has. Raises UserError for a kind that the model does not have."""
    if not sizes:
        raise UserError(f"kind={kind!r}: this model has no attention.")
    if kind not in sizes:
        raise UserError(f"kind={kind!r}: choose one of {', '.join(sorted(sizes))}.")
    return sizes[kind]
