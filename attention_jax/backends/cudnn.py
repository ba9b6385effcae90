"""cuDNN's fused attention, through `jax.nn.dot_product_attention`: for all keys, the first keys of each text, the keys
before the query or the last of those; never under `vmap`.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attention_jax.backends.fused import Examples, Kernel, Known
from attention_jax.backends.record import Call

MARK = ("__cudnn$fmhaSoftmax",)
MOST_FEATURES, MULTIPLE = 256, 8  # of a head; before Hopper cuDNN has 128 and says so itself


def _reasons(masks: tuple[str, ...], call: Call) -> dict[str, bool]:
    size = call.features or MULTIPLE
    return {
        "it has windows of keys before the query alone (causal)": "window" in masks and "causal" not in masks,
        "it has no window beside lengths": {"window", "lengths"} <= {*masks},
        "it is causal where queries are as many as keys": "causal" in masks and call.is_uneven,
        f"its heads have a multiple of {MULTIPLE} features, {MOST_FEATURES} at most": (
            size % MULTIPLE != 0 or size > MOST_FEATURES
        ),
    }


def _run(examples: Examples, known: Known, scale: float) -> Float[Array, "b k g q v"]:
    count, heads, groups, length, size = examples.query.shape
    query = jnp.moveaxis(examples.query.reshape(count, heads * groups, length, size), 1, 2)
    key, value = (jnp.moveaxis(array, 1, 2) for array in (examples.key, examples.value))
    lengths = known.lengths
    if lengths is not None:  # a text without keys reads its first, and its values are made zeros afterwards
        lengths = jnp.broadcast_to(jnp.maximum(lengths, 1).astype(jnp.int32), (count,))
    found = jax.nn.dot_product_attention(
        _unbatched(query),
        key,
        value,
        scale=scale,
        is_causal=known.is_causal,
        key_value_seq_lengths=lengths,
        local_window_size=None if known.window is None else (known.window, 0),
        implementation="cudnn",
    )
    return jnp.moveaxis(found, 2, 1).reshape(examples.query.shape)


@jax.custom_vjp
def _unbatched(x: Array) -> Array:
    """x. Raises ValueError under `vmap`."""
    return _alone(x)


_unbatched.defvjp(lambda x: (_alone(x), None), lambda _, change: (change,))


def _refused(size: int, is_batched: list[bool], x: Array) -> tuple[Array, bool]:
    del size, is_batched, x
    raise ValueError(
        "backend='cudnn': it has no vmap. Train one member after another (--config.population.how=loop), or choose "
        "backend='reference'."
    )


_alone: Any = jax.custom_batching.custom_vmap(lambda x: x)
_alone.def_vmap(_refused)
CUDNN = Kernel(_run, "gpu", ("float16", "bfloat16"), ("causal", "window", "lengths"), MARK, _reasons)
