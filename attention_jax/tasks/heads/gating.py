"""Gates on the outputs of heads: a model's loss without each of them, and the gradient's estimate of it.

Heads of all kinds stand in a row, kind by kind, layer by layer: `[..., heads]`. `by_kind` gives each its own part.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from attention_jax import stopping
from attention_jax.evaluation.translation import Batch, Batches
from attention_jax.modules.attention import Edit, Edits
from attention_jax.ops.losses import Sums
from attention_jax.training.state import Variables

AT_ONCE = 4  # how many settings of the gates are tried side by side; each has logits of its own
RowLoss = Callable[[Variables, Batch, Edits], Sums]  # the loss of each row
Sizes = Mapping[str, tuple[int, int]]  # layers and heads, by kind of attention


class Losses(NamedTuple):
    """Nats of every row under each setting of the gates, and the rows' tokens."""

    nats: Float[np.ndarray, "settings rows"]
    tokens: Float[np.ndarray, " rows"]

    @property
    def means(self) -> Float[np.ndarray, " settings"]:
        """Nats a target token."""
        return self.nats.sum(-1) / self.tokens.sum()


def count(sizes: Sizes) -> int:
    """How many heads there are, of all kinds."""
    return sum(layers * heads for layers, heads in sizes.values())


def by_kind(row: Any, sizes: Sizes) -> dict[str, Any]:
    """A row of all heads, `[..., heads]`, as `[..., layers, heads]` of each kind."""
    ends = np.cumsum([layers * heads for layers, heads in sizes.values()])
    parts = jnp.split(row, ends[:-1], axis=-1) if isinstance(row, jax.Array) else np.split(row, ends[:-1], axis=-1)
    named = zip(sizes.items(), parts, strict=True)
    return {kind: part.reshape(*part.shape[:-1], *shape) for (kind, shape), part in named}


def one_removed(heads: int) -> Float[np.ndarray, "heads+1 heads"]:
    """Gates of the whole model, then without each head."""
    return 1 - np.concatenate([np.zeros((1, heads)), np.eye(heads)]).astype(np.float32)


def first_removed(order: Int[np.ndarray, " n"], heads: int) -> Float[np.ndarray, "n+1 heads"]:
    """Gates without the first 0, 1, … heads of an order of some of the heads, or of all."""
    gates = np.ones((len(order) + 1, heads), np.float32)
    for removed, head in enumerate(order.tolist(), start=1):
        gates[removed:, head] = 0
    return gates


def gated_losses(loss: RowLoss, sizes: Sizes) -> Callable[[Variables, Batches, np.ndarray], Losses]:
    """A function of variables, batches and gates `[settings, heads]`, which are arguments of one program."""

    @jax.jit
    def each(variables: Variables, batch: Batch, gates: Array) -> Any:
        return jax.lax.map(lambda row: loss(variables, batch, edits_of(row, sizes)), gates, batch_size=AT_ONCE)

    def measured(variables: Variables, batches: Batches, gates: np.ndarray) -> Losses:
        found = [(rows, each(variables, batch, gates)) for rows, batch in _polled(batches)]
        nats = [np.asarray(sums.total[:, : len(rows)], np.float64) for rows, sums in found]
        tokens = [np.asarray(sums.count[0, : len(rows)], np.float64) for rows, sums in found]
        return Losses(np.concatenate(nats, axis=1), np.concatenate(tokens))

    return measured


def estimates(loss: RowLoss, sizes: Sizes) -> Callable[[Variables, Batches], np.ndarray]:
    """A function of variables and batches: what the gradient says that each head is worth, in nats a target token.

    I_h = E_x |∂L(x) / ∂ξ_h| at gates ξ of 1, the mean over sentences (Michel et al. 2019, eq. 2); divided by a
    sentence's mean number of tokens, as losses are. It is not divided by its layer's norm, as theirs is (§4.1), so that
    heads of all layers and kinds compare.
    """

    def of_sentence(gates: Array, variables: Variables, row: Batch) -> Array:
        batch = jax.tree.map(lambda part: part[None], row)
        return loss(variables, batch, edits_of(gates, sizes)).total[0]

    @jax.jit
    def gradients(variables: Variables, batch: Batch) -> Array:
        return jax.vmap(jax.grad(of_sentence), (None, None, 0))(jnp.ones(count(sizes)), variables, batch)

    @jax.jit
    def tokens(variables: Variables, batch: Batch) -> Array:
        return loss(variables, batch, {}).count

    def measured(variables: Variables, batches: Batches) -> np.ndarray:
        steep, counted = np.zeros(count(sizes)), 0.0
        for rows, batch in _polled(batches):
            steep += np.abs(np.asarray(gradients(variables, batch), np.float64)[: len(rows)]).sum(0)
            counted += float(tokens(variables, batch)[: len(rows)].sum())
        return steep / counted

    return measured


def edits_of(gates: Any, sizes: Sizes) -> dict[str, Edit]:
    """Gates in a row as the edits of a model."""
    return {kind: Edit(gate=gate) for kind, gate in by_kind(gates, sizes).items()}


def _polled(batches: Batches) -> Iterator[tuple[np.ndarray, Batch]]:
    """The batches, until a stop is asked for."""
    for rows, batch in batches:
        stopping.poll()
        yield rows, batch
