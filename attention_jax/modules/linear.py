"""Mixers with a state of fixed size: linear attention, retention, gated linear attention, the delta rule."""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from attention_jax.modules.positions import PositionEncoding
from attention_jax.ops.cache import Held
from attention_jax.ops.features import elu_features, orthogonal_directions, positive_features, unit_features
from attention_jax.ops.linear import (
    MOST_DECAY,
    Tokens,
    bidirectional,
    chunked,
    gated_log_decays,
    over_sum,
    recurrent,
    retention_decays,
    with_sum,
)
from attention_jax.ops.naming import whole
from attention_jax.ops.normalization import rms_norm
from attention_jax.ops.placing import over_features
from attention_jax.ops.shapes import require_choice

BLOCK = 16  # tokens whose pairs are computed at once; where features decay apart, at most
MOST_RETAINED = int(MOST_DECAY / -math.log(1 - 2**-5))  # tokens of a block of retention, by the head that forgets most
RANK = 16  # of the matrix that makes a token's decays (Yang et al. 2023, §4.4)
NO, BY_HEAD, BY_FEATURE = "no", "by_head", "by_feature"  # decays


class Rule(NamedTuple):
    """How a state takes up tokens and is read.

    - `features` of queries and keys `[..., T, F]`.
    - `decays`: by no factor; by a constant of each head; by factors of each feature, which the token says.
    - `corrects`: by the delta rule, at a rate that the token says.
    - `divides`: what is read is divided by the sum of weights. Otherwise each head's output has its RMS norm.
    - `is_gated`: outputs are multiplied by silu(x W).
    - `block`: how many tokens of a whole text are computed at once; 1: one after another.
    """

    features: Callable[[Array], Array]
    block: int
    decays: str = NO
    corrects: bool = False
    divides: bool = False
    is_gated: bool = False


def linear(features: str = "elu", count: int | None = None, block: int = BLOCK) -> Rule:
    """φ(q)ᵀ Σ φ(k) vᵀ / φ(q)ᵀ Σ φ(k) (Katharopoulos et al. 2020, eq. 5).

    `features` are "elu", or "positive": `count` random ones (64) of softmax attention, drawn once and the same in every
    run (Choromanski et al. 2021, §2).
    """
    require_choice("features", features, ("elu", "positive"))
    most = whole("count", 64 if count is None else count)
    if features == "elu" and count is not None:
        raise ValueError(f"count={count}: features='elu' has as many as a key. Leave it out, or set features=positive.")
    kinds: dict[str, Callable[[Array], Array]] = {
        "elu": elu_features,
        "positive": functools.partial(_softmax_features, most),
    }
    return Rule(kinds[features], whole("block", block), divides=True)


def retention(block: int = BLOCK) -> Rule:
    """Each head forgets at a rate of its own; norm and gate are after it (Sun et al. 2023, §2.2)."""
    if whole("block", block) > MOST_RETAINED:
        raise ValueError(f"block={block}: needs {MOST_RETAINED} or less, where float32 has what a block forgets.")
    return Rule(lambda x: x, block, decays=BY_HEAD, is_gated=True)


def gated_linear(block: int = BLOCK) -> Rule:
    """Every feature of a key forgets by σ(x W₁ W₂ + b)^(1/16), which the token says (Yang et al. 2023, §4.4)."""
    if whole("block", block) > BLOCK:
        raise ValueError(f"block={block}: needs {BLOCK} or less, where float32 has what a block forgets.")
    return Rule(lambda x: x, block, decays=BY_FEATURE, is_gated=True)


def delta(block: int = BLOCK) -> Rule:
    """The delta rule, with queries and keys silu(x W) of length 1 (Yang et al. 2024, §3.3); no convolutions."""
    return Rule(unit_features, whole("block", block), corrects=True)


RULES: dict[str, Callable[..., Rule]] = {
    "linear": linear,
    "retention": retention,
    "gated_linear": gated_linear,
    "delta": delta,
}


class StateMixer(nn.Module):
    """Heads that take up keys and values into a state by a `rule`, and read it by queries, times W_o.

    `kv_heads` states serve `heads` heads of queries. Queries and keys are turned by the encoding, if that turns. What
    is not causal reads the state after all tokens.
    """

    rule: Rule
    width: int
    heads: int
    kv_heads: int
    encoding: PositionEncoding
    dtype: DTypeLike = jnp.float32
    param_dtype: DTypeLike = jnp.float32

    def setup(self):
        kept = self.kv_heads * self.size
        shapes = {"query": (self.width, self.width), "key": (self.width, kept), "value": (self.width, kept)}
        shapes["out"] = (self.width, self.width)
        if self.rule.is_gated:
            shapes["gate"] = (self.width, self.width)
        if self.rule.decays == BY_FEATURE:
            shapes |= {"decay_in": (self.width, RANK), "decay_out": (RANK, kept)}
        if self.rule.corrects:
            shapes["rate"] = (self.width, self.kv_heads)
        glorot = nn.initializers.glorot_uniform()
        self.matrices = {name: self.param(name, glorot, shape, self.param_dtype) for name, shape in shapes.items()}
        if self.rule.decays == BY_FEATURE:
            self.decay_bias = self.param("decay_bias", nn.initializers.zeros, (kept,), self.param_dtype)
        if not self.rule.divides:
            self.gain = self.param("gain", nn.initializers.ones, (self.size,), self.param_dtype)

    @property
    def size(self) -> int:
        return self.width // self.heads

    def init_cache(self, batch: int, room: int) -> Held:
        """What is held of texts before their first token: a state of zeros for each head of keys, of any room."""
        del room
        features = jax.eval_shape(self.rule.features, jnp.zeros((1, self.size))).shape[-1]
        shape = (batch, self.kv_heads, 1, features, self.size + self.rule.divides)
        return Held(state=jnp.zeros(shape, jnp.float32))

    def __call__(
        self,
        x: Float[Array, "batch t d"],
        valid: Bool[Array, "batch t"],
        positions: Int[Array, "#batch t"],
        held: Held | None = None,
    ) -> tuple[Float[Array, "batch t d"], Held | None]:
        """What each token reads, and what is held after the last that is `valid`; the others are not taken up."""
        tokens = self._tokens(x, valid, positions)
        if not self.encoding.sizes.is_causal:
            outputs = bidirectional(tokens)
        else:
            block = min(self.rule.block, x.shape[-2])
            read = recurrent if block == 1 else functools.partial(chunked, size=block)
            outputs, state = read(tokens, state=held and held.state)
            held = held and Held(state=state)
        outputs_BxKxGxTxF = over_sum(outputs) if self.rule.divides else rms_norm(outputs, self.gain)
        outputs_BxTxKxGxF = jnp.moveaxis(outputs_BxKxGxTxF, -2, 1)
        joined_BxTxD = outputs_BxTxKxGxF.reshape(x.shape).astype(self.dtype)
        if self.rule.is_gated:
            joined_BxTxD = joined_BxTxD * jax.nn.silu(self._made(x, "gate"))
        return self._made(joined_BxTxD, "out"), held

    def _tokens(self, x: Array, valid: Array, positions: Array) -> Tokens:
        """What the tokens ask of the state, and give to it in float32: `[batch, kv_heads, heads a state, T, …]`."""
        query, key = (
            self.rule.features(self.encoding.rotate(self._split(self._made(x, name), heads), positions))
            for name, heads in (("query", self.heads), ("key", self.kv_heads))
        )
        value = self._split(self._made(x, "value"), self.kv_heads)
        rate = self._split(jax.nn.sigmoid(self._made(x, "rate")), self.kv_heads) if self.rule.corrects else None
        is_valid = valid[:, None, :, None]
        by_state = query.reshape(len(query), self.kv_heads, -1, *query.shape[-2:])
        given = (
            jnp.where(is_valid, key, 0),
            with_sum(value) if self.rule.divides else value,
            self._log_decay(x, is_valid),
            rate,
        )
        return Tokens(by_state, *jax.tree.map(lambda array: array[:, :, None].astype(jnp.float32), given))

    def _log_decay(self, x: Array, is_valid: Array) -> Array | None:
        """The logarithms of decays, 0 for tokens that are not valid: `[batch, kv_heads, T, F or 1]`."""
        if self.rule.decays == NO:
            return None
        if self.rule.decays == BY_HEAD:
            decay = jnp.log(retention_decays(self.kv_heads))[None, :, None, None]
        else:
            asked = (self._made(x, "decay_in") @ self.matrices["decay_out"].astype(self.dtype)).astype(jnp.float32)
            asked += jnp.expand_dims(self.decay_bias.astype(jnp.float32), (0, 1))
            decay = gated_log_decays(self._split(asked, self.kv_heads))
        return jnp.where(is_valid, jnp.maximum(decay, -MOST_DECAY / BLOCK), 0)

    def _made(self, x: Array, name: str) -> Array:
        return x @ self.matrices[name].astype(self.dtype)

    def _split(self, x_BxTxD: Array, heads: int) -> Array:
        x_BxTxNxF = x_BxTxD.reshape(*x_BxTxD.shape[:-1], heads, -1)
        return over_features(jnp.moveaxis(x_BxTxNxF, -2, -3), axis=-3)


def _softmax_features(count: int, x: Array) -> Array:
    directions = jnp.asarray(_directions(count, x.shape[-1]))
    return positive_features(x.astype(jnp.float32) * x.shape[-1] ** -0.25, directions)


@functools.cache
def _directions(count: int, size: int) -> np.ndarray:
    with jax.ensure_compile_time_eval():
        return np.asarray(orthogonal_directions(jax.random.key(0), count, size))
