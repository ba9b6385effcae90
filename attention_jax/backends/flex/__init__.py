"""Attention by one generator of Pallas kernels: masks, biases and dropout are functions of indices, in linear memory.

What is asked is brought into arrays that kernels can cut into blocks, and functions of one pair of a query and a key
(`flex_kernels`). Masks say of every pair of blocks whether it is empty, partial or full, from what their rules read and
by interval arithmetic; a sink needs no kernel: it divides by one more term, which the logarithm of the sum gives.

On a CPU kernels are interpreted: right, and slow.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attention_jax.backends.flex import kernels
from attention_jax.backends.flex.inputs import bias_of, prepared
from attention_jax.backends.flex.walks import Inputs, Plan
from attention_jax.ops.attention import Attended, Attention
from attention_jax.ops.shapes import align_ranks, require_batch, require_broadcast, require_same_size


def refusal(attention: Attention) -> str:
    """Why this backend cannot do what is asked; "" if it can."""
    relative, stream = attention.relative, attention.normalizer.stream
    reasons = {
        "it never makes all weights": attention.with_weights or attention.replacement is not None,
        "a score by the positions of keys needs all keys at once": attention.score.room is not None,
        "a score with parameters for every pair does not fit into a kernel": _has_own_params(attention),
        "this normalizer is no softmax": stream is None or not stream.has_peak,
        "a bias that is an array is as large as the weights that it avoids (give a function of positions)": (
            attention.bias is not None
        ),
        "this encoding's bias reads more of a query than its position": (
            relative.bias is not None and relative.pairs is None
        ),
        "it adds nothing beside the values": relative.mix is not None,
        "it has no falloff of weights": relative.falloff is not None,
    }
    return next((reason for reason, holds in reasons.items() if holds), "")


def pooled(
    query: Float[Array, "*#batch q dq"],
    key: Float[Array, "*#batch k dk"],
    value: Float[Array, "*#batch k v"],
    attention: Attention,
    blocks: tuple[int, int],
) -> Attended:
    """The attention that the record asks for, in blocks of `blocks` = (queries, keys)."""
    require_batch(key=key, value=value)
    require_same_size(-2, key=key, value=value)
    if reason := refusal(attention):
        raise ValueError(f"backend='flex': {reason}.")
    if not query.shape[-2] or not key.shape[-2]:
        batch = np.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
        return Attended(jnp.zeros((*batch, query.shape[-2], value.shape[-1]), value.dtype), None)
    score = attention.score.projected(query.shape[-1], *attention.score_params)
    bias = bias_of(query, attention.relative)
    attention = attention._replace(score=attention.score._replace(apply=score.apply))
    plan, inputs = prepared(_times(query, score.w_q), _times(key, score.w_k), value, attention, bias, blocks)
    require_broadcast("value's batch axes", value.shape[:-2], "weights' batch axes", plan.batch)
    values, total = (array[..., : query.shape[-2], :] for array in _attended(plan, inputs))
    if attention.normalizer.stream.has_sink:
        (sink,) = align_ranks(total, jnp.asarray((*attention.normalizer_params, 0.0)[0], total.dtype))[1:]
        values = values * jax.nn.sigmoid(total - sink)
    return Attended(values.astype(value.dtype), None)


def _times(x: Array, matrix: Array | None) -> Array:
    """A score's projection, in the dtype of what is projected."""
    return x if matrix is None else jnp.einsum("...d,dh->...h", x, matrix.astype(x.dtype))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attended(plan: Plan, inputs: Inputs) -> tuple[Float[Array, "*batch q v"], Float[Array, "*batch q 1"]]:
    """The values, and ln Σ exp of the scores."""
    return kernels.forward(plan, inputs)


def _forward(plan: Plan, inputs: Inputs):
    values, total = kernels.forward(plan, inputs)
    return (values, total), (inputs, values, total)


def _backward(plan: Plan, kept, given):
    """With weights p and total t: ds_ij = p_ij (⟨do_i, v_j⟩ − ⟨do_i, o_i⟩ + dt_i) (Dao 2023, §2.3)."""
    (inputs, values, total), (gradient, of_total) = kept, given
    less = jnp.sum(gradient.astype(total.dtype) * values.astype(total.dtype), axis=-1, keepdims=True) - of_total
    rows = jnp.concatenate([jnp.where(jnp.isneginf(total), 0, total), less], axis=-1)
    both = inputs._replace(gradient=gradient, rows=rows)
    of_query, of_numbers = kernels.of_queries(plan, both)
    of_key, of_value = kernels.of_keys(plan, both)
    found = {"query": of_query, "key": of_key, "value": of_value, "numbers": of_numbers}
    none = Inputs(*[None] * len(Inputs._fields))  # type: ignore[arg-type]
    wanted = {name: getattr(inputs, name) for name in found}
    return (none._replace(**{name: _summed(found[name], own) for name, own in wanted.items() if own is not None}),)


_attended.defvjp(_forward, _backward)


def _summed(gradient: Array, array: Array) -> Array:
    """The gradient of an array that was broadcast."""
    axes = tuple(axis for axis, size in enumerate(array.shape[:-2]) if size != gradient.shape[axis])
    return jnp.sum(gradient, axis=axes, keepdims=True)[..., : array.shape[-1]].astype(array.dtype)


def _has_own_params(attention: Attention) -> bool:
    """Whether a score keeps parameters where queries and keys have been projected."""
    score = attention.score
    params = attention.score_params or [
        jax.ShapeDtypeStruct(shape, jnp.float32) for shape in score.shapes(4, 4, 4).values()
    ]
    return bool(jax.eval_shape(lambda *params: score.projected(4, *params).params, *params))
