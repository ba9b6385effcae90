"""Mixers: what a layer has for the tokens of a text to see one another."""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from attention_jax.modules.linear import RULES, StateMixer
from attention_jax.modules.positions import PositionEncoding
from attention_jax.modules.recurrent import RecurrentEncoder
from attention_jax.ops.cache import Held
from attention_jax.ops.mixing import WINDOW, convolution
from attention_jax.ops.naming import build, parse


class Mixer(NamedTuple):
    """A mixer as a config names it.

    - `make(spec, encoding)`: its module, of a layer with this `LayerSpec`; None: self-attention as the spec says.
    - `attends`: whether it has heads with weights, which can be shown and edited.
    - `turns`: whether an encoding may turn its queries and keys.
    - `goes_back`: whether it is defined where a token reads those after it too.
    """

    make: Callable[[Any, PositionEncoding], nn.Module] | None = None
    attends: bool = False
    turns: bool = False
    goes_back: bool = True


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
        self.layer = RecurrentEncoder(*sizes, self.dtype, self.param_dtype)

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


def _by_rule(name: str) -> Callable[..., Mixer]:
    """The builder of a mixer with a state; its options are those of the rule."""

    def builder(**options: Any) -> Mixer:
        rule = RULES[name](**options)
        make = lambda spec, encoding: StateMixer(rule, spec.width, spec.heads, spec.kv_heads, encoding, **spec.types)  # noqa: E731
        return Mixer(make, turns=name == "retention", goes_back=name == "linear")

    return builder


ATTENTION = "attention"
BUILDERS: dict[str, Callable[..., Mixer]] = {
    ATTENTION: lambda: Mixer(attends=True, turns=True),
    WINDOW: lambda: Mixer(attends=True, turns=True),
    "gru": lambda: Mixer(lambda spec, encoding: Recurrence(spec.width, encoding.sizes.is_causal, **spec.types)),
    "convolution": lambda: Mixer(
        lambda spec, encoding: Convolution(spec.width, spec.reach, encoding.sizes.is_causal, **spec.types)
    ),
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
