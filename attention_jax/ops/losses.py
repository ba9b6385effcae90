"""Losses as sums with their counts: sums over parts of a batch add up, and a mean is taken only at the end."""

import functools
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from attention_jax.ops.shapes import require_shape


@functools.partial(jax.tree_util.register_dataclass, data_fields=["total", "count"], meta_fields=[])
@dataclass(frozen=True)
class Sums:
    """A total, and the number of terms in it."""

    total: Float[Array, "..."]
    count: Float[Array, "..."]

    def mean(self) -> Float[Array, "..."]:
        """total / count; 0 if nothing was counted."""
        return self.total / jnp.maximum(self.count, 1)


def cross_entropy(
    logits: Float[Array, "*batch v"],
    labels: Int[Array, "*batch"],
    weights: Bool[Array, "*batch"] | None = None,
    label_smoothing: Float[Array, ""] | float = 0.0,
) -> Sums:
    """Σ −(1 − ε) log p(label) − ε/V Σ_v log p(v) in nats, over the labels that `weights` keeps, and their number.

    ε is label smoothing (Szegedy et al. 2016, §7). Accumulates in float32. The loss of a label that is no class, such
    as −1, is NaN: leave it out by `weights`. Raises ValueError for labels or weights without the logits' leading axes,
    TypeError for weights that are not boolean.
    """
    require_shape("labels", labels, logits.shape[:-1], f"logits are {logits.shape}")
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    loss = _losses(logits, labels, jnp.asarray(label_smoothing, logits.dtype))
    if weights is None:
        return Sums(jnp.sum(loss), jnp.asarray(loss.size, loss.dtype))
    require_shape("weights", weights, labels.shape, f"labels are {labels.shape}")
    if weights.dtype != jnp.bool_:
        raise TypeError(f"weights has dtype {weights.dtype}, needs bool: True = counted.")
    return Sums(jnp.sum(jnp.where(weights, loss, 0)), jnp.sum(weights, dtype=loss.dtype))


@jax.custom_vjp
def _losses(
    logits: Float[Array, "*batch v"], labels: Int[Array, "*batch"], label_smoothing: Float[Array, ""]
) -> Float[Array, "*batch"]:
    """The loss of each label."""
    return _forward(logits, labels, label_smoothing)[0]


def _forward(logits, labels, label_smoothing):
    log_total = jax.nn.logsumexp(logits, axis=-1)
    known = jnp.where(labels < 0, logits.shape[-1], labels)  # a negative one would count from the end
    chosen = jnp.take_along_axis(logits, known[..., None], axis=-1)[..., 0]
    of_smoothing = chosen - jnp.mean(logits, axis=-1)
    smoothed = jnp.where(label_smoothing == 0, 0, label_smoothing * of_smoothing)  # a logit may be −∞
    return log_total - chosen + smoothed, (logits, labels, label_smoothing, log_total, of_smoothing)


def _backward(kept, gradient):
    """∂loss/∂logit_v = p(v) − (1 − ε)[v = label] − ε/V, in one pass without a scatter; written once for all readers."""
    logits, labels, label_smoothing, log_total, of_smoothing = kept
    each = jax.lax.broadcasted_iota(labels.dtype, logits.shape, logits.ndim - 1)
    wanted = jnp.where(each == labels[..., None], 1 - label_smoothing, 0) + label_smoothing / logits.shape[-1]
    change = gradient[..., None] * (jnp.exp(logits - log_total[..., None]) - wanted)
    return jax.lax.optimization_barrier(change), None, jnp.sum(gradient * of_smoothing)


_losses.defvjp(_forward, _backward)


def squared_error(prediction: Float[Array, "..."], target: Float[Array, "..."]) -> Sums:
    """Σ (prediction − target)² and the number of elements."""
    require_shape("prediction", prediction, target.shape, f"target is {target.shape}")
    return Sums(jnp.sum(jnp.square(prediction - target)), jnp.asarray(prediction.size, jnp.float32))
