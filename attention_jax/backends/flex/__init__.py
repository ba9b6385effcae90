"""Attention by one generator of Pallas kernels: masks, biases and dropout are functions of indices, in linear memory.

What is asked is brought into arrays that kernels can cut into blocks, and functions of one pair of a query and a key
(`inputs`); three kernels are made of these (`kernels`), and walk the blocks as a device does best (`walks`). Masks say
of every block whether it is empty, partial or full, by interval arithmetic on what their rules read. A sink needs no
kernel: it divides by one more term, which the logarithm of the sum gives.

On a CPU kernels are interpreted, which is right and slow.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attention_jax.backends import chunked
from attention_jax.backends.flex import kernels
from attention_jax.backends.flex.inputs import Asked, bias_of, prepared
from attention_jax.backends.flex.walks import Inputs, Lengths, Plan, usual_blocks
from attention_jax.backends.fused import SCALES
from attention_jax.backends.record import Call, first_of, platform
from attention_jax.ops.attention import Attended, Attention
from attention_jax.ops.normalizing import finite_sink
from attention_jax.ops.shapes import align_ranks, require_batch, require_broadcast, require_same_size

MARK = ("flex_queries",)  # what `walks` call the kernel that is in every program


def refusal(attention: Attention, call: Call | None = None) -> str:
    """Why this backend cannot do what is asked; "" if it can. What `chunked` cannot do, it cannot."""
    relative, stream = attention.relative, attention.normalizer.stream
    reasons: dict[str, bool] = {
        "this normalizer is no softmax": stream is None or not stream.has_peak,
        "a score with parameters for every pair does not fit into a kernel": _has_own_params(attention),
        "this encoding's bias reads more of a query than its position": bool(relative.bias and not relative.pairs),
        "it adds nothing beside the values": relative.mix is not None,
        "it has no falloff of weights": relative.falloff is not None,
    }
    return chunked.refusal(attention, call) or first_of(reasons | _of_devices(call))


def _of_devices(call: Call | None) -> dict[str, bool]:
    """What the devices that programs are made for have against a call."""
    here, devices = platform(), jax.sharding.get_abstract_mesh().size
    sizes = () if call is None else (call.features or 1, call.value_features or 1)
    return {
        "on a GPU its heads have a power of 2 of features": here == "gpu" and any(size & (size - 1) for size in sizes),
        f"its kernels are for one device, and the mesh has {devices}": here != "cpu" and devices > 1,
    }


def pooled(
    query: Float[Array, "*#batch q dq"],
    key: Float[Array, "*#batch k dk"],
    value: Float[Array, "*#batch k v"],
    attention: Attention,
    blocks: tuple[int | None, int | None],
) -> Attended:
    """The attention that the record asks for, in blocks of `blocks` = (queries, keys); None is the usual size."""
    require_batch(key=key, value=value)
    require_same_size(-2, key=key, value=value)
    stream, relative = attention.normalizer.stream, attention.relative
    if stream is None:
        raise ValueError(f"backend='flex': {refusal(attention)}.")
    if not query.shape[-2] or not key.shape[-2]:
        batch = np.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
        return Attended(jnp.zeros((*batch, query.shape[-2], value.shape[-1]), value.dtype), None)
    score = attention.score.projected(query.shape[-1], *attention.score_params)
    multiple = SCALES.get(score.apply)
    bias, query, key = bias_of(query, relative), _times(query, score.w_q), _times(key, score.w_k)
    scale = multiple and multiple(query.shape[-1])
    asked = Asked(score.apply, scale, stream.bend, bias, attention.mask, attention.dropout)
    usual = usual_blocks(max(query.shape[-1], value.shape[-1]))
    sizes = Lengths(*(size or least for size, least in zip(blocks, usual, strict=True)))
    plan, inputs = prepared(query, key, value, asked, sizes)
    require_broadcast("value's batch axes", value.shape[:-2], "weights' batch axes", plan.batch)
    values, total = (array[..., : query.shape[-2], :] for array in _attended(plan, inputs))
    if stream.has_sink:
        sink = finite_sink((*attention.normalizer_params, 0.0)[0], total.dtype)
        values = values * jax.nn.sigmoid(jnp.subtract(*align_ranks(total, sink)))
    return Attended(values.astype(value.dtype), None)


def _times(x: Array, matrix: Array | None) -> Array:
    """A score's projection, in the dtype of what is projected."""
    return x if matrix is None else jnp.einsum("...d,dh->...h", x, matrix.astype(x.dtype))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attended(plan: Plan, inputs: Inputs) -> tuple[Float[Array, "*batch q v"], Float[Array, "*batch q 1"]]:
    """The values, and ln Σ exp of the scores. Positions, masks and dropout's rate have no gradient."""
    return kernels.forward(plan, inputs)


def _forward(plan: Plan, inputs: Inputs):
    values, total = kernels.forward(plan, inputs)
    return (values, total), (inputs, values, total)


def _backward(plan: Plan, kept, given):
    """With weights p and total t: ds_ij = p_ij (⟨do_i, v_j⟩ − ⟨do_i, o_i⟩ + dt_i) (Dao 2023, §2.3)."""
    (inputs, values, total), (gradient, of_total) = kept, given
    less = jnp.sum(gradient.astype(total.dtype) * values.astype(total.dtype), axis=-1, keepdims=True) - of_total
    rows = jnp.concatenate([jnp.where(jnp.isneginf(total), 0, total) * kernels.LOG2_E, less], axis=-1)
    both = inputs._replace(gradient=gradient, rows=rows)
    of_query, of_numbers = kernels.of_queries(plan, both)
    of_key, of_value = kernels.of_keys(plan, both)
    found = Inputs(of_query, of_key, of_value, None, None, None if inputs.numbers is None else of_numbers)
    return (jax.tree.map(_summed, found, inputs._replace(kinds=None, masks=None, positions=None, drops=None)),)


_attended.defvjp(_forward, _backward)


def _summed(gradient: Array, array: Array) -> Array:
    """The gradient of an array that was broadcast."""
    axes = tuple(axis for axis, size in enumerate(array.shape[:-2]) if size != gradient.shape[axis])
    return jnp.sum(gradient, axis=axes, keepdims=True)[..., : array.shape[-1]].astype(array.dtype)


def _has_own_params(attention: Attention) -> bool:
    """Whether a score keeps parameters where queries and keys have been projected."""
    score = attention.score
    shapes = score.shapes(4, 4, 4).values()
    params = attention.score_params or tuple(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)
    return bool(jax.eval_shape(lambda *params: score.projected(4, *params).params, *params))
