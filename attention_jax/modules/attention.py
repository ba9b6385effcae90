"""Multi-head attention: parameters and the head axis; the pooling is `ops.pooling`'s."""

from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from attention_jax.ops.dropout import Dropout
from attention_jax.ops.masking import Mask, materialize
from attention_jax.ops.normalization import rms_norm
from attention_jax.ops.pooling import attend_with_weights


class KeyValue(NamedTuple):
    """Keys and values, already projected and split into heads: `[batch, heads, tokens, features]`."""

    key: Float[Array, "batch h s f"]
    value: Float[Array, "batch h s f"]


class MultiHeadAttention(nn.Module):
    """softmax(Q_h K_hᵀ / √d) V_h for every head h, side by side, times W_o (Vaswani et al. 2017, §3.2.2).

    `kv_heads` heads of keys and values serve `heads` heads of queries: fewer make it grouped-query attention
    (Ainslie et al. 2023), one multi-query (Shazeer 2019). `qk_norm` takes the RMS norm of every query and key
    (Dehghani et al. 2023, §2.1).
    """

    width: int
    heads: int
    kv_heads: int
    qk_norm: bool
    dtype: jnp.dtype = jnp.float32
    param_dtype: jnp.dtype = jnp.float32

    def setup(self):
        if self.width % self.heads:
            raise ValueError(f"heads={self.heads} does not divide width={self.width}.")
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads={self.kv_heads} does not divide heads={self.heads}.")
        size = self.width // self.heads
        glorot = nn.initializers.glorot_uniform()
        shapes = {"query": self.heads, "key": self.kv_heads, "value": self.kv_heads}
        self.matrices = {
            name: self.param(name, glorot, (self.width, heads * size), self.param_dtype)
            for name, heads in shapes.items()
        }
        self.out = self.param("out", glorot, (self.width, self.width), self.param_dtype)
        if self.qk_norm:
            self.gains = {
                name: self.param(f"{name}_gain", nn.initializers.ones, (size,), self.param_dtype)
                for name in ("query", "key")
            }

    def project(self, memory: Float[Array, "batch s d"]) -> KeyValue:
        """Keys and values of a memory, once for all that will ask it."""
        key = self._split(memory @ self.matrices["key"].astype(self.dtype), self.kv_heads)
        value = self._split(memory @ self.matrices["value"].astype(self.dtype), self.kv_heads)
        return KeyValue(rms_norm(key, self.gains["key"]) if self.qk_norm else key, value)

    def __call__(
        self, x: Float[Array, "batch t d"], memory: KeyValue, mask: Mask | None, dropout: Dropout | None = None
    ) -> tuple[Float[Array, "batch t d"], Float[Array, "batch h t s"]]:
        """What each of `x` reads from the memory, and the weights. `mask` is without heads: `[..., T, S]`."""
        query_BxNxTxF = self._split(x @ self.matrices["query"].astype(self.dtype), self.heads)
        if self.qk_norm:
            query_BxNxTxF = rms_norm(query_BxNxTxF, self.gains["query"])
        groups = self.heads // self.kv_heads
        query_BxKxGxTxF = query_BxNxTxF.reshape(len(x), self.kv_heads, groups, *query_BxNxTxF.shape[-2:])
        pooled_BxKxGxTxF, weights = attend_with_weights(
            query_BxKxGxTxF,
            memory.key[:, :, None],
            memory.value[:, :, None],
            mask=None if mask is None else materialize(mask)[..., None, None, :, :],
            dropout=dropout,
        )
        pooled_BxTxNxF = jnp.moveaxis(pooled_BxKxGxTxF.reshape(query_BxNxTxF.shape), -3, -2)
        joined = pooled_BxTxNxF.reshape(*pooled_BxTxNxF.shape[:-2], self.width)
        return joined @ self.out.astype(self.dtype), weights.reshape(len(x), self.heads, *weights.shape[-2:])

    def _split(self, x_BxTxD: Array, heads: int) -> Array:
        x_BxTxNxF = x_BxTxD.reshape(*x_BxTxD.shape[:-1], heads, -1)
        return jnp.moveaxis(x_BxTxNxF, -2, -3)
