"""Multi-head latent attention: it owns the parameters of `ops.latent`, and reads a cache without making keys."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from attention_jax import backends
from attention_jax.modules.attention import UNCHANGED, Edit, Heads, Shown, edited
from attention_jax.modules.grouping import Grouping
from attention_jax.modules.positions import PositionEncoding, QueryKeyPositions
from attention_jax.modules.spec import AttentionSpec
from attention_jax.ops.attention import Replacement
from attention_jax.ops.cache import Held, written
from attention_jax.ops.dropout import Dropout
from attention_jax.ops.latent import Latents, Read, absorbed, expanded, of_heads
from attention_jax.ops.masking import Mask, with_axes
from attention_jax.ops.normalizing import make_normalizer
from attention_jax.ops.placing import over_features
from attention_jax.ops.statistics import Summary, attend_with_statistics


class LatentAttention(nn.Module):
    """softmax((q_hᵀk_h + q_{R,h}ᵀk_R) / √(F + R)) v_h for every head h (DeepSeek-AI 2024, §2.1), times W_o.

    `rank` is the size of the latent c = x W_c, and `rotary` that of the key k_R = x W_r, which positions turn. Queries
    are x W_q: they have no latent of their own, and latents no norm. Texts are read with every head's own keys and
    values, caches without making them.
    """

    rank: int
    rotary: int
    width: int
    heads: int
    spec: AttentionSpec
    encoding: PositionEncoding
    dtype: DTypeLike = jnp.float32
    param_dtype: DTypeLike = jnp.float32

    def setup(self):
        turned = self.heads * self.rotary
        shapes = {"query": (self.width, self.width), "query_turned": (self.width, turned), "out": (self.width,) * 2}
        shapes |= {"latent": (self.width, self.rank), "key_turned": (self.width, self.rotary)}
        shapes |= {"key": (self.rank, self.width), "value": (self.rank, self.width)}
        glorot = nn.initializers.glorot_uniform()
        self.matrices = {name: self.param(name, glorot, shape, self.param_dtype) for name, shape in shapes.items()}
        self.sinks = make_normalizer(self.spec.normalize).init_with(self.param, self.heads, self.param_dtype)

    def project(self, x: Float[Array, "batch s d"], positions: Int[Array, "#batch s"]) -> Latents:
        """What is kept of the tokens of `x`."""
        turned = self._turned(self._split(self._made(x, "key_turned"), 1), positions)
        return Latents(self._made(x, "latent"), turned[:, 0])

    def init_cache(self, batch: int, room: int) -> Held:
        """What is held of texts before their first token, with room for `room` tokens."""
        return Held(Latents(*(jnp.zeros((batch, room, size), self.dtype) for size in (self.rank, self.rotary))))

    def recall(
        self,
        x: Float[Array, "batch t d"],
        valid: Bool[Array, "batch t"],
        mask: Mask | None,
        positions: QueryKeyPositions,
        held: Held,
        first: Int[Array, " batch"],
    ) -> tuple[Latents, Held]:
        """What the tokens of `x` read, themselves and what was held; and the same as what is held after them."""
        del valid, mask
        history = written(held.history, self.project(x, positions.queries), first)
        return history, Held(history)

    def __call__(
        self,
        x: Float[Array, "batch t d"],
        memory: Latents,
        mask: Mask | None,
        dropout: Dropout | None,
        positions: QueryKeyPositions,
        edit: Edit = UNCHANGED,
        with_heads: bool = False,
        is_cached: bool = False,
        summary: Summary | None = None,
        depth: Array | int = 0,
    ) -> tuple[Float[Array, "batch t d"], Shown]:
        """What each token of `x` reads; as in `MultiHeadAttention`. Of a cache it reads without making keys."""
        query = self._split(self._made(x, "query"), self.heads)
        turned = self._turned(self._split(self._made(x, "query_turned"), self.heads), positions.queries)
        heads = Grouping(self.heads, 1 if is_cached else self.heads)
        w_key, w_value = (
            self.matrices[name].astype(self.dtype).reshape(self.rank, self.heads, -1) for name in ("key", "value")
        )
        if is_cached:
            read = Read(*(jnp.expand_dims(array, -4) for array in absorbed(query, turned, memory, w_key)))
        else:
            read = Read(*(array[..., None, :, :] for array in expanded(query, turned, memory, w_key, w_value)))
        asked: dict[str, Any] = {
            "normalize": self.spec.normalize,
            "normalizer_params": tuple(heads.by_group(sink) for sink in self.sinks),
            "mask": None if mask is None else with_axes(mask, 2),
            "dropout": dropout,
        }
        if edit.weights is not None and edit.replaced is not None:
            asked["replacement"] = Replacement(heads.by_group(edit.replaced), heads.grouped(edit.weights))
        told: Any
        if summary is not None:
            values, told = attend_with_statistics(*read, summary.with_axes(2), **asked)
        else:
            backend = backends.of_caches(self.spec.backend) if is_cached else self.spec.backend
            name = "reference" if with_heads or edit.weights is not None else backend
            values, told = backends.attend(name, *read, **asked, with_weights=with_heads)
        values_BxNxTxF = heads.joined(values)
        if is_cached:
            values_BxNxTxF = of_heads(values_BxNxTxF, w_value)
        outputs_BxNxTxF = edited(values_BxNxTxF, edit)
        joined_BxTxD = jnp.moveaxis(outputs_BxNxTxF, -3, -2).reshape(x.shape)
        shown = jax.tree.map(heads.joined, told)
        return self._made(joined_BxTxD, "out"), Heads(shown, outputs_BxNxTxF) if with_heads else shown

    def _made(self, x: Array, name: str) -> Array:
        return x @ self.matrices[name].astype(self.dtype)

    def _turned(self, x: Array, positions: Array) -> Array:
        return self.encoding.rotate(x, positions)

    def _split(self, x_BxTxD: Array, heads: int) -> Array:
        x_BxTxNxF = x_BxTxD.reshape(*x_BxTxD.shape[:-1], heads, -1)
        return over_features(jnp.moveaxis(x_BxTxNxF, -2, -3), axis=-3)
