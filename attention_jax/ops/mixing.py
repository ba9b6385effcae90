"""Layers without recurrence that mix the tokens of a sequence `[..., n, d]`: convolution, attention in a window."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attention_jax.ops.pooling import attend
from attention_jax.ops.shapes import require_same_size

WINDOW = "window"  # the name of attention to tokens at most so many positions away


def convolution(
    x: Float[Array, "*batch n d"], kernel: Float[Array, "k d f"], *, dilation: int = 1, is_causal: bool = False
) -> Float[Array, "*batch n f"]:
    """y_i = Σ_j x_{i + (j − c) · dilation} W_j over the k matrices of the kernel, with x = 0 outside the sequence.

    The centre c is the kernel's middle, or its last index if `is_causal` (van den Oord et al. 2016, §2.1). Raises
    ValueError for a kernel of other features, or of an even size that is not causal.
    """
    size, n = len(kernel), x.shape[-2]
    if not is_causal and size % 2 == 0:
        raise ValueError(f"the kernel has size {size}: needs an odd size, or is_causal=True.")
    require_same_size(-1, x=x, kernel=jnp.swapaxes(kernel, -1, -2))
    before = (size - 1 if is_causal else size // 2) * dilation
    after = 0 if is_causal else before
    padded = jnp.pad(x, [(0, 0)] * (x.ndim - 2) + [(before, after), (0, 0)])
    shifted = [jax.lax.slice_in_dim(padded, j * dilation, j * dilation + n, axis=-2) for j in range(size)]
    first, *others = (part @ matrix for part, matrix in zip(shifted, kernel, strict=True))
    return sum(others, first)


def windowed_attention(
    query: Float[Array, "*batch n d"],
    key: Float[Array, "*batch n d"],
    value: Float[Array, "*batch n v"],
    reach: int,
) -> Float[Array, "*batch n v"]:
    """`attend` to the keys at most `reach` positions away; no others are scored (Vaswani et al. 2017, §4).

    Each query gathers its 2 · reach + 1 keys: time and memory grow with n · reach, not n².
    """
    n = query.shape[-2]
    if n == 0:
        return value
    index = jnp.arange(n)[:, None] + jnp.arange(-reach, reach + 1)[None]
    near_key, near_value = (jnp.take(side, jnp.clip(index, 0, n - 1), axis=-2) for side in (key, value))
    mask_Nx1xK = ((index >= 0) & (index < n))[:, None, :]
    mask = jnp.expand_dims(mask_Nx1xK, tuple(range(query.ndim - 2)))
    return attend(query[..., None, :], near_key, near_value, mask=mask)[..., 0, :]
