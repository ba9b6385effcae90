"""The attention kernels that ship with JAX, in Pallas: `triton` for GPUs, `flash` and `splash` for TPUs.

Texts are filled up to whole blocks with padding that nothing reads. With `interpret` a kernel is computed anywhere,
block by block and slowly, which is for tests.
"""

import functools
import importlib.util
import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attention_jax.backends.fused import Examples, Kernel, Known, block_of, ids_of, in_lanes, lengthened
from attention_jax.backends.record import Call
from attention_jax.ops.placing import by_rows_and_heads

Values = Float[Array, "b k g q v"]
MOST_FEATURES = 128  # of a head whose blocks fit in the memory that a GPU's processor shares


def triton(interpret: bool) -> Kernel:
    """`pallas.ops.gpu.attention.mha`: self-attention, for queries and keys share its segments and its blocks."""

    def reasons(masks: tuple[str, ...], call: Call) -> dict[str, bool]:
        del masks
        return {
            f"JAX {jax.__version__} does not ship it": not _ships("jax.experimental.pallas.ops.gpu.attention"),
            "it is for self-attention, where queries are as many as keys": call.is_uneven,
            f"it has heads of up to {MOST_FEATURES} features": (call.features or 0) > MOST_FEATURES,
        }

    run, mark = functools.partial(_triton, interpret=interpret), ("__gpu$xla.gpu.triton", "mha_forward")
    return Kernel(run, "" if interpret else "gpu", ("float16", "bfloat16", "float32"), ("causal",), mark, reasons)


def _ships(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its package is not there either
        return False


def flash(queries: int, keys: int, interpret: bool) -> Kernel:
    """`pallas.ops.tpu.flash_attention`: causal, and by segments of queries and of keys."""
    run = functools.partial(_flash, most=(queries, keys), interpret=interpret)
    masks = ("causal", "lengths", "keys", "segments")
    return Kernel(
        run, "" if interpret else "tpu", ("bfloat16", "float32"), masks, ("tpu_custom_call", "flash_attention")
    )


def splash(queries: int, keys: int, interpret: bool) -> Kernel:
    """`pallas.ops.tpu.splash_attention`: as `flash`, without the blocks that a mask leaves empty, and with windows."""

    def reasons(masks: tuple[str, ...], call: Call) -> dict[str, bool]:
        return {"it has windows where queries are as many as keys": "window" in masks and call.is_uneven}

    run = functools.partial(_splash, most=(queries, keys), interpret=interpret)
    masks = ("causal", "window", "lengths", "keys", "segments")
    return Kernel(
        run, "" if interpret else "tpu", ("bfloat16", "float32"), masks, ("tpu_custom_call", "splash_mha_fwd"), reasons
    )


def _triton(examples: Examples, known: Known, scale: float, interpret: bool) -> Values:
    with warnings.catch_warnings():  # that another package will have it
        warnings.simplefilter("ignore", DeprecationWarning)
        from jax.experimental.pallas.ops.gpu.attention import mha

    query, length = examples.query, examples.query.shape[-2]
    padded = in_lanes(length)
    ids = None if known.is_causal or padded == length else (jnp.arange(padded) < length).astype(jnp.int32)[None]

    def run(query, key, value):
        examples, heads, groups, _, size = query.shape
        of_heads = lambda array: jnp.moveaxis(array.reshape(examples, heads * groups, padded, size), 1, 2)  # noqa: E731
        key, value = (jnp.broadcast_to(array[:, :, None], query.shape) for array in (key, value))
        segments = ids if ids is None else jnp.broadcast_to(ids, (examples, padded))
        arrays = map(of_heads, (query, key, value))
        found = mha(*arrays, segments, sm_scale=scale, causal=known.is_causal, interpret=interpret)
        return jnp.moveaxis(found, 2, 1).reshape(query.shape)

    found = by_rows_and_heads(run, *(lengthened(array, padded) for array in (query, examples.key, examples.value)))
    return found[..., :length, :]


def _flash(examples: Examples, known: Known, scale: float, most: tuple[int, int], interpret: bool) -> Values:
    from jax.experimental.pallas.ops.tpu import flash_attention as upstream

    arrays, ids, blocks = _in_blocks(examples, known, most)
    sizes = upstream.BlockSizes(**_flash_blocks(*blocks))

    def run(query, key, value, *ids):
        examples, heads, groups, length, size = query.shape
        every = query.reshape(examples, heads * groups, length, size)
        key, value = (_repeated(array, groups) for array in (key, value))
        segments = upstream.SegmentIds(*(jnp.broadcast_to(i, (examples, i.shape[-1])) for i in ids)) if ids else None
        options = {"causal": known.is_causal, "sm_scale": scale, "block_sizes": sizes}
        return upstream.flash_attention(every, key, value, None, segments, **options).reshape(query.shape)

    found = by_rows_and_heads(_interpreted(run) if interpret else run, *arrays, *ids)
    return found[..., : examples.query.shape[-2], :]


def _interpreted(run: Callable[..., Values]) -> Callable[..., Values]:
    """The function, whose kernels and those of its gradient are interpreted; upstream has no option for it."""
    from jax.experimental.pallas.tpu import force_tpu_interpret_mode as interpreting

    @jax.custom_vjp
    def found(*arrays):
        with interpreting():
            return run(*arrays)

    def forward(*arrays):
        with interpreting():
            return jax.vjp(run, *arrays)

    def backward(pull, change):
        with interpreting():
            return pull(change)

    found.defvjp(forward, backward)
    return found


def _splash(examples: Examples, known: Known, scale: float, most: tuple[int, int], interpret: bool) -> Values:
    from jax.experimental.pallas.ops.tpu import splash_attention as upstream

    arrays, ids, blocks = _in_blocks(examples, known, most)
    sizes = upstream.BlockSizes(**_splash_blocks(*blocks))

    def run(query, key, value, *ids):
        examples, heads, groups, length, size = query.shape
        mask = upstream.MultiHeadMask([_splash_mask(known, (length, key.shape[-2]))] * (heads * groups))
        kernel = upstream.make_splash_mha(mask, head_shards=1, q_seq_shards=1, block_sizes=sizes, interpret=interpret)
        every = (query * scale).astype(query.dtype).reshape(examples, heads * groups, length, size)
        if not ids:
            return jax.vmap(kernel)(every, key, value).reshape(query.shape)
        of_examples = upstream.SegmentIds(*(jnp.broadcast_to(i, (examples, i.shape[-1])) for i in ids))
        return jax.vmap(kernel)(every, key, value, of_examples).reshape(query.shape)

    return by_rows_and_heads(run, *arrays, *ids)[..., : examples.query.shape[-2], :]


def _splash_mask(known: Known, shape: tuple[int, int]) -> Any:
    from jax.experimental.pallas.ops.tpu import splash_attention as upstream

    if known.window is not None:
        return upstream.LocalMask(shape, (known.window, 0 if known.is_causal else known.window), offset=0)
    return upstream.CausalMask(shape) if known.is_causal else upstream.FullMask(shape)


def _in_blocks(examples: Examples, known: Known, most: tuple[int, int]) -> tuple[tuple, tuple, tuple[int, int]]:
    """The arrays filled up to whole blocks, the segments that keep padding apart where any are needed, the blocks."""
    queries, keys = examples.query.shape[-2], examples.key.shape[-2]
    padded = in_lanes(queries), in_lanes(keys)
    blocks = block_of(padded[0], most[0]), block_of(padded[1], most[1])
    arrays = (
        lengthened(examples.query, padded[0]),
        lengthened(examples.key, padded[1]),
        lengthened(examples.value, padded[1]),
    )
    sees_padding = padded[1] > keys and not (known.is_causal and queries <= keys)
    is_apart = sees_padding or known.lengths is not None or known.keys is not None or known.segments is not None
    return arrays, ids_of(known, queries, keys, padded) if is_apart else (), blocks


def _repeated(array: Array, groups: int) -> Array:
    """`[B, K, S, D]` as `[B, K · G, S, D]`: the keys of each head of queries."""
    examples, heads, *rest = array.shape
    return jnp.broadcast_to(array[:, :, None], (examples, heads, groups, *rest)).reshape(examples, -1, *rest)


def _flash_blocks(queries: int, keys: int) -> dict[str, Any]:
    of_queries = ("block_q", "block_q_major_dkv", "block_q_dkv", "block_q_dq")
    of_keys = ("block_k_major", "block_k", "block_k_major_dkv", "block_k_dkv", "block_k_major_dq", "block_k_dq")
    return dict.fromkeys(of_queries, queries) | dict.fromkeys(of_keys, keys) | {"block_b": 1}


def _splash_blocks(queries: int, keys: int) -> dict[str, Any]:
    of_queries, of_keys = ("block_q", "block_q_dkv", "block_q_dq"), ("block_kv", "block_kv_dkv", "block_kv_dq")
    return dict.fromkeys(of_queries, queries) | dict.fromkeys(of_keys, keys)
