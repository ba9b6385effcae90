"""A finished run, opened to measure its heads: texts, variables of every seed, programs."""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from attention_jax.evaluation.translation import Batch, Batches
from attention_jax.modules.attention import Edits
from attention_jax.ops.losses import Sums
from attention_jax.tasks.heads.gating import Losses, Sizes, estimates, gated_losses
from attention_jax.tasks.heads.portrait import Portrait
from attention_jax.training.description import Description
from attention_jax.training.state import Variables

KINDS = ("encoder", "decoder", "cross")  # of attention, in the order in which they are shown
Looks = dict[str, dict[str, np.ndarray]]  # what tells a role, by kind: [layers, heads]


@dataclasses.dataclass(frozen=True)
class Session:
    """What measures the heads of a run; each part is made once, when it is first asked for.

    `config` is the measurement's, `of_run` the run's own, in the folder `path`. A subclass is of one kind of model.
    """

    config: ConfigDict
    of_run: ConfigDict
    path: Path

    @property
    def variables(self) -> list[Variables]:
        """The best variables of each of the run's seeds."""
        raise NotImplementedError

    @property
    def sizes(self) -> Sizes:
        """How many layers and heads each kind of attention has."""
        raise NotImplementedError

    def loss(self, variables: Variables, batch: Batch, edits: Edits) -> Sums:
        """The loss of each row of a batch."""
        raise NotImplementedError

    def batches(self, key: str) -> Batches:
        """What heads are measured on ("split"), or put in order on ("ordering")."""
        raise NotImplementedError

    @property
    def measured_on(self) -> str:
        """What of the run's data heads are measured on, in words."""
        return f"{self.config.split} split"

    def bleu(self, seed: int, settings: Iterable[Edits]) -> list[float]:
        """BLEU of a seed's model, by its index, with each of some edits; nothing where nothing is translated."""
        raise NotImplementedError

    def looks(self, seed: int) -> Looks:
        """What tells the roles of a seed's heads."""
        raise NotImplementedError

    def chances(self) -> dict[str, float]:
        """What heads that know nothing reach of roles."""
        raise NotImplementedError

    def portrait(self, gates: np.ndarray) -> Portrait:
        """What the first seed's model makes of a text, under each of some gates `[settings, heads]`."""
        raise NotImplementedError

    @property
    def description(self) -> Description:
        """A step of the run's own training, without its data."""
        raise NotImplementedError

    @functools.cached_property
    def losses(self) -> Callable[[Variables, Batches, np.ndarray], Losses]:
        """The loss under gates."""
        return gated_losses(self.loss, self.sizes)

    @functools.cached_property
    def estimates(self) -> Callable[[Variables, Batches], np.ndarray]:
        """What the gradient says of every head."""
        return estimates(self.loss, self.sizes)


def in_order(sizes: dict[str, Any]) -> dict[str, Any]:
    """Sizes by kind, in the order in which kinds are shown."""
    return {kind: sizes[kind] for kind in KINDS if kind in sizes}
