"""Mixers: what a layer has for the tokens of a text to see one another."""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from attention_jax import backends
from attention_jax.modules.latent import LatentAttention
from attention_jax.modules.linear import RULES, StateMixer
from attention_jax.modules.positions import PositionEncoding
from attention_jax.modules.recurrent import RecurrentEncoder
from attention_jax.ops.cache import Held
from attention_jax.ops.mixing import WINDOW, convolution
from attention_jax.ops.naming import build, parse, whole


def _reads_no_qk_norm(spec: Any) -> None:
    if spec.qk_norm:
        raise ValueError(f"qk_norm=True: mixer={spec.mixer!r} does not read it. Set qk_norm=False.")


class Mixer(NamedTuple):
    """A mixer as a config names it.

    - `make(spec, encoding)`: its module, of a layer with this `LayerSpec`.
    - `attends`: whether it has heads with weights, which can be shown and edited.
    - `turns`, `biases`: whether an encoding may turn its queries and keys, and add to its scores and values.
    - `turned`: how many features of a head an encoding turns; None: all.
    - `goes_back`: whether it is defined where a token reads those after it too.
    - `require(spec)`: raises ValueError for a spec that it cannot follow.
    """

    make: Callable[[Any, PositionEncoding], nn.Module]
    attends: bool = False
    turns: bool = False
    biases: bool = False
    turned: int | None = None
    goes_back: bool = True
    require: Callable[[Any], None] = _reads_no_qk_norm


class Convolution(nn.Module):
    """Sums tokens at most `reach` positions away, each distance by its own matrix; only those before if `is_causal`."""

    width: int
    reach: int
    is_causal: bool
    dtype: DTypeLike = jnp.float32
    param_dtype: DTypeLike = jnp.float32

    def setup(self):
        size = self.reach + 1 if self.is_causal else 2 * self.reach + 1
        glorot = nn.initializers.variance_scaling(1.0, "fan_avg", "uniform")
        self.kernel = self.param("kernel", glorot, (size, self.width, self.width), self.param_dtype)

    def init_cache(self, batch: int, room: int) -> Held:
        """What is held of texts before their first token: `reach` tokens of zeros, of any room."""
        del room
        return Held(state=jnp.zeros((batch, self.reach, self.width), self.dtype))

    def __call__(
        self,
        x: Float[Array, "batch t d"],
        valid: Bool[Array, "batch t"],
        positions: Int[Array, "#batch t"],
        held: Held | None = None,
    ) -> tuple[Float[Array, "batch t d"], Held | None]:
        """The sums, and the last `reach` tokens that were read; those that are `valid` come first."""
        x, kernel = jnp.where(valid[..., None], x, 0), self.kernel.astype(self.dtype)
        if held is None:
            return convolution(x, kernel, is_causal=self.is_causal), None
        read = jnp.concatenate([held.state, x], axis=1)
        last = jnp.sum(valid, axis=1, keepdims=True) + jnp.arange(self.reach)[None]
        summed = convolution(read, kernel, is_causal=True)[:, self.reach :]
        return summed, Held(state=jnp.take_along_axis(read, last[..., None], axis=1))


class Recurrence(nn.Module):
    """A gated recurrent unit over the tokens; if not causal, two of half the width, one from either end."""

    width: int
    is_causal: bool
    dtype: DTypeLike = jnp.float32
    param_dtype: DTypeLike = jnp.float32

    def setup(self):
        features = self.width if self.is_causal else self.width // 2
        sizes = ("gru", self.width, features, 1, not self.is_causal)
        self.layer = RecurrentEncoder(*sizes, self.param_dtype)

    def init_cache(self, batch: int, room: int) -> Held:
        """What is held of texts before their first token: a hidden state of zeros, of any room."""
        del room
        return Held(state=((jnp.zeros((batch, self.width), self.dtype),),))

    def __call__(
        self,
        x: Float[Array, "batch t d"],
        valid: Bool[Array, "batch t"],
        positions: Int[Array, "#batch t"],
        held: Held | None = None,
    ) -> tuple[Float[Array, "batch t d"], Held | None]:
        """The hidden states, and the last one."""
        outputs, state = self.layer(x, valid, None, held and held.state)
        return outputs, held and Held(state=state)


def _attention() -> Mixer:
    make = lambda spec, encoding: spec.attention(spec.of_self, encoding, spec.of_pattern.stream)  # noqa: E731
    return Mixer(make, attends=True, turns=True, biases=True, require=lambda spec: None)


def _gru() -> Mixer:
    def require(spec: Any) -> None:
        _reads_no_qk_norm(spec)
        if spec.width % 2:
            raise ValueError(f"width={spec.width}: needs an even number, because mixer='gru' halves it.")

    make = lambda spec, encoding: Recurrence(spec.width, encoding.sizes.is_causal, **spec.types)  # noqa: E731
    return Mixer(make, require=require)


def _convolution() -> Mixer:
    return Mixer(
        lambda spec, encoding: Convolution(spec.width, spec.reach, encoding.sizes.is_causal, **spec.types),
    )


def _by_rule(name: str) -> Callable[..., Mixer]:
    """The builder of a mixer with a state; its options are those of the rule."""

    def builder(**options: Any) -> Mixer:
        rule = RULES[name](**options)
        make = lambda spec, encoding: StateMixer(rule, spec.width, spec.heads, spec.kv_heads, encoding, **spec.types)  # noqa: E731
        return Mixer(make, turns=name == "retention", goes_back=name == "linear")

    return builder


def _latent(rank: int = 32, rotary: int = 16) -> Mixer:
    sizes = whole("rank", rank), whole("rotary", rotary, 2)
    if rotary % 2:
        raise ValueError(f"rotary={rotary}: needs an even number.")

    def require(spec: Any) -> None:
        _reads_no_qk_norm(spec)
        spec.require_unset(("score", "family"), f"mixer={spec.mixer!r} does not read it")
        if spec.kv_heads != spec.heads:
            raise ValueError(
                f"kv_heads={spec.kv_heads}: heads of mixer={spec.mixer!r} share latents, not keys. Set kv_heads=heads."
            )
        if backends.of_caches(spec.backend) != spec.backend:
            raise ValueError(f"backend={spec.backend!r}: not for mixer={spec.mixer!r}. Choose reference or chunked.")

    def make(spec: Any, encoding: PositionEncoding) -> nn.Module:
        return LatentAttention(*sizes, spec.width, spec.heads, spec.of_self, encoding, **spec.types)

    return Mixer(make, attends=True, turns=True, turned=rotary, require=require)


ATTENTION, LATENT = "attention", "latent"
BUILDERS: dict[str, Callable[..., Mixer]] = {
    ATTENTION: _attention,
    WINDOW: _attention,
    LATENT: _latent,
    "gru": _gru,
    "convolution": _convolution,
    **{name: _by_rule(name) for name in RULES},
}


def make_mixer(text: str, key: str = "mixer") -> Mixer:
    """The mixer that `text`, the value of a config's `key`, names. Raises ValueError for an unknown name or option."""
    return build(key, text, BUILDERS)


def attends(text: str) -> bool:
    """Whether a mixer has heads with weights."""
    return make_mixer(text).attends


def is_window(text: str) -> bool:
    """Whether a mixer is attention to tokens at most `reach` positions away."""
    return parse(text)[0] == WINDOW


def by_text(
    mixer: Callable, x: Float[Array, "batch t d"], positions: Int[Array, "#batch t"], held: Held | None
) -> tuple[Float[Array, "batch t d"], Held | None]:
    """What a mixer makes of a decoder's tokens, which with a cache are the next ones of as many texts side by side.

    Padding is read as any token: it stands after a text's words.
    """
    everywhere = jnp.ones(x.shape[:2], bool)
    if held is None:
        return mixer(x, everywhere, positions)
    flat = lambda leaf: leaf.reshape(-1, *leaf.shape[2:])  # noqa: E731
    new = jax.tree.map(flat, (x, everywhere, jnp.broadcast_to(positions, x.shape[:2])))
    out, now = mixer(*(array[:, None] for array in new), jax.tree.map(flat, held))
    return out.reshape(x.shape), jax.tree.map(lambda leaf, before: leaf.reshape(before.shape), now, held)
