"""Multi-head attention: parameters and the head axis; the pooling is `ops.pooling`'s."""

from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

from attention_jax.modules.positions import Places, PositionEncoding
from attention_jax.ops.dropout import Dropout, drop
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
    (Dehghani et al. 2023, §2.1). `encoding` turns queries and keys, and adds to scores and values.
    """

    width: int
    heads: int
    kv_heads: int
    qk_norm: bool
    dtype: DTypeLike = jnp.float32
    param_dtype: DTypeLike = jnp.float32
    encoding: PositionEncoding | None = None

    def setup(self):
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

    def project(self, memory: Float[Array, "batch s d"], positions: Int[Array, "#batch s"] | None = None) -> KeyValue:
        """Keys and values of a memory, once for all that will ask it; `positions` where there is an encoding."""
        key = self._split(memory @ self.matrices["key"].astype(self.dtype), self.kv_heads)
        value = self._split(memory @ self.matrices["value"].astype(self.dtype), self.kv_heads)
        return KeyValue(self._placed(rms_norm(key, self.gains["key"]) if self.qk_norm else key, positions), value)

    def __call__(
        self,
        x: Float[Array, "batch t d"],
        memory: KeyValue,
        mask: Mask | None,
        dropout: Dropout | None = None,
        places: Places | None = None,
    ) -> tuple[Float[Array, "batch t d"], Float[Array, "batch h t s"]]:
        """What each of `x` reads from the memory, and the weights. `mask` is without heads: `[..., T, S]`."""
        query_BxNxTxF = self._split(x @ self.matrices["query"].astype(self.dtype), self.heads)
        if self.qk_norm:
            query_BxNxTxF = rms_norm(query_BxNxTxF, self.gains["query"])
        query_BxNxTxF = self._placed(query_BxNxTxF, places and places.queries)
        bias_BxNxTxS = self.encoding.bias(query_BxNxTxF, places) if self.encoding and places else None
        pooled_BxKxGxTxF, weights_BxKxGxTxS = attend_with_weights(
            self._grouped(query_BxNxTxF),
            memory.key[:, :, None],
            memory.value[:, :, None],
            mask=None if mask is None else materialize(mask)[..., None, None, :, :],
            bias=None if bias_BxNxTxS is None else self._grouped(bias_BxNxTxS),
            dropout=dropout,
        )
        pooled_BxNxTxF = self._joined(pooled_BxKxGxTxF)
        if self.encoding and places and self.encoding.record.mix:
            kept_BxNxTxS = self._joined(drop(weights_BxKxGxTxS, dropout))
            pooled_BxNxTxF += self.encoding.mix(kept_BxNxTxS, places).astype(self.dtype)
        pooled_BxTxNxF = jnp.moveaxis(pooled_BxNxTxF, -3, -2)
        joined_BxTxD = pooled_BxTxNxF.reshape(*pooled_BxTxNxF.shape[:-2], self.width)
        return joined_BxTxD @ self.out.astype(self.dtype), self._joined(weights_BxKxGxTxS)

    def _placed(self, x: Array, positions: Array | None) -> Array:
        return x if self.encoding is None or positions is None else self.encoding.rotate(x, positions)

    def _grouped(self, x_BxNxTxF: Array) -> Array:
        """Heads by the keys and values that they share: `[batch, kv_heads, groups, …]`."""
        batch, _, *rest = x_BxNxTxF.shape
        return x_BxNxTxF.reshape(batch, self.kv_heads, self.heads // self.kv_heads, *rest)

    def _joined(self, x_BxKxGxTxS: Array) -> Array:
        return x_BxKxGxTxS.reshape(len(x_BxKxGxTxS), self.heads, *x_BxKxGxTxS.shape[-2:])

    def _split(self, x_BxTxD: Array, heads: int) -> Array:
        x_BxTxNxF = x_BxTxD.reshape(*x_BxTxD.shape[:-1], heads, -1)
        return jnp.moveaxis(x_BxTxNxF, -2, -3)
