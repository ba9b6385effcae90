"""A training step as shapes: what it is called with, and what it costs, before anything is trained."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from attention_jax.training.cost import flops
from attention_jax.training.hyper import rule_of, settled, traced
from attention_jax.training.loop import abstract_states
from attention_jax.training.state import Variables
from attention_jax.training.step import Loss, train_step


class Description(NamedTuple):
    """A config's parameters (shapes), one training step, and the shapes it is called with."""

    parameters: Any
    step: Callable
    arguments: tuple

    @property
    def size(self) -> int:
        """How many parameters there are."""
        return sum(leaf.size for leaf in jax.tree.leaves(self.parameters))

    @property
    def flops(self) -> float:
        """Matrix-product FLOPs of the step."""
        return flops(self.step, *self.arguments)


def description_of(
    config: ConfigDict,
    init: Callable[[jax.Array], Variables],
    loss: Loss,
    batch: Any,
    more: Mapping[str, Any] = {},
) -> Description:
    """One training step on a batch of shapes; `more` are dynamic values that are not the optimizer's."""
    rule = rule_of(config.optimizer)
    hyper = traced(settled(config.optimizer)) | {"key": jax.random.key(0)}
    (state,) = abstract_states(init, rule.optimizer, 1)
    step = functools.partial(train_step, loss, rule)
    return Description(state.variables["params"], step, (state, batch, {**hyper, **more}))
