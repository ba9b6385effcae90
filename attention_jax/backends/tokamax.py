"""tokamax's attention for GPUs, where that package is installed: for all keys, the first keys of each text, the keys
before the query or near it, at any length and head size.
"""

import functools
import importlib.util

import jax.numpy as jnp
from jaxtyping import Array, Float

from attention_jax.backends.fused import Examples, Kernel, Known
from attention_jax.backends.record import Call
from attention_jax.errors import missing
from attention_jax.ops.placing import by_rows_and_heads

# Which of its implementations: where it computes, and its mark. "xla" has no kernel: it is for tests, on any machine.
IMPLEMENTATIONS = {"triton": ("gpu", ("__gpu$xla.gpu.triton", "pallas_flash_attention_fwd")), "xla": ("", ())}


def tokamax(implementation: str) -> Kernel:
    """tokamax's attention by this implementation, never by another that it would choose. Raises ValueError."""
    if implementation not in IMPLEMENTATIONS:
        raise ValueError(f"implementation={implementation!r}: choose one of {', '.join(IMPLEMENTATIONS)}.")
    platform, mark = IMPLEMENTATIONS[implementation]
    run, dtypes = functools.partial(_run, implementation=implementation), ("float16", "bfloat16", "float32")
    return Kernel(run, platform, dtypes, ("causal", "window", "lengths"), mark, _reasons)


def _reasons(masks: tuple[str, ...], call: Call) -> dict[str, bool]:
    return {
        missing("tokamax").rstrip("."): importlib.util.find_spec("tokamax") is None,
        "it has no window beside lengths": {"window", "lengths"} <= {*masks},
        "it has windows where queries are as many as keys": "window" in masks and call.is_uneven,
    }


def _run(examples: Examples, known: Known, scale: float, implementation: str) -> Float[Array, "b k g q v"]:
    from tokamax import dot_product_attention

    lengths = known.lengths
    if lengths is not None:  # a text without keys reads its first, and its values are made zeros afterwards
        lengths = jnp.broadcast_to(jnp.maximum(lengths, 1), examples.query.shape[:1])
    window = None if known.window is None else (known.window, 0 if known.is_causal else known.window)

    def run(query, key, value, *lengths):
        count, heads, groups, length, size = query.shape
        of_queries = jnp.moveaxis(query.reshape(count, heads * groups, length, size), 1, 2)
        found = dot_product_attention(
            of_queries,
            *(jnp.moveaxis(array, 1, 2) for array in (key, value)),
            scale=scale,
            is_causal=known.is_causal and window is None,
            key_value_seq_lengths=lengths[0] if lengths else None,
            local_window_size=window,
            implementation=implementation,
        )
        return jnp.moveaxis(found, 2, 1).reshape(query.shape)

    return by_rows_and_heads(run, *examples, *([] if lengths is None else [lengths]))
