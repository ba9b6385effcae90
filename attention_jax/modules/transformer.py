"""The layers of a Transformer: attention and feed-forward, each added to its input and normalised."""

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from attention_jax.modules.attention import KeyValue, MultiHeadAttention
from attention_jax.modules.normalization import Norm
from attention_jax.ops.dropout import Dropout, drop
from attention_jax.ops.masking import Mask

ACTIVATIONS: dict[str, Callable] = {"relu": jax.nn.relu, "gelu": jax.nn.gelu, "silu": jax.nn.silu}
SITES = ("embeddings", "residual", "attention", "hidden")


class LayerSpec(NamedTuple):
    """What all layers of a model have in common.

    `gated` makes the feed-forward (f(x W) ∘ x V) W₂ (Shazeer 2020), `norm_first` normalises before each sub-layer
    instead of after the sum (Xiong et al. 2020). `dropout_sites`: embeddings, residual (each sub-layer's output),
    attention (weights), hidden (of the feed-forward); the paper has the first two.
    """

    width: int
    heads: int
    kv_heads: int
    qk_norm: bool
    feed_forward: int
    activation: str
    gated: bool
    norm: str
    norm_first: bool
    dropout_sites: tuple[str, ...]
    dtype: jnp.dtype
    param_dtype: jnp.dtype

    @property
    def types(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "param_dtype": self.param_dtype}

    def site(self, dropout: Dropout | None, site: str, place: int) -> Dropout | None:
        """Dropout with a key of its own for one place of a site, None where the site has none."""
        if dropout is None or site not in self.dropout_sites:
            return None
        return dropout.fold(len(SITES) * place + SITES.index(site))


class FeedForward(nn.Module):
    """f(x W₁ + b₁) W₂ + b₂ for each token alone (Vaswani et al. 2017, eq. 2), or its gated form."""

    spec: LayerSpec

    @nn.compact
    def __call__(self, x: Float[Array, "batch t d"], dropout: Dropout | None) -> Float[Array, "batch t d"]:
        spec = self.spec
        dense = lambda features, name: nn.Dense(  # noqa: E731
            features, kernel_init=nn.initializers.glorot_uniform(), **spec.types, name=name
        )
        hidden = ACTIVATIONS[spec.activation](dense(spec.feed_forward, "hidden")(x))
        if spec.gated:
            hidden = hidden * dense(spec.feed_forward, "gate")(x)
        return dense(spec.width, "out")(drop(hidden, dropout))


class Residual(nn.Module):
    """norm(x + f(x)), or x + f(norm(x)) with `norm_first`; f may return more than the sum needs."""

    spec: LayerSpec
    place: int

    @nn.compact
    def __call__(
        self, x: Float[Array, "batch t d"], valid: Bool[Array, "batch t"], dropout: Dropout | None, sublayer: Callable
    ) -> tuple[Float[Array, "batch t d"], Any]:
        norm = Norm(self.spec.norm, self.spec.param_dtype, name="norm")
        is_training = dropout is not None
        change, more = sublayer(norm(x, valid, is_training) if self.spec.norm_first else x)
        x = x + drop(change, self.spec.site(dropout, "residual", self.place))
        return (x if self.spec.norm_first else norm(x, valid, is_training)), more


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward."""

    spec: LayerSpec

    def setup(self):
        spec = self.spec
        self.self_attention = MultiHeadAttention(spec.width, spec.heads, spec.kv_heads, spec.qk_norm, **spec.types)
        self.feed_forward = FeedForward(spec)
        self.residuals = [Residual(spec, place) for place in range(2)]

    def __call__(
        self, x: Float[Array, "batch s d"], valid: Bool[Array, "batch s"], dropout: Dropout | None
    ) -> tuple[Float[Array, "batch s d"], Float[Array, "batch h s s"]]:
        """The tokens after this layer, and its attention weights."""
        attention_dropout = self.spec.site(dropout, "attention", 0)

        def attend(x):
            return self.self_attention(x, self.self_attention.project(x), valid[:, None, :], attention_dropout)

        def feed(x):
            return self.feed_forward(x, self.spec.site(dropout, "hidden", 0)), None

        x, weights = self.residuals[0](x, valid, dropout, attend)
        return self.residuals[1](x, valid, dropout, feed)[0], weights


class DecoderLayer(nn.Module):
    """Self-attention to the words before, attention to the source, then feed-forward."""

    spec: LayerSpec

    def setup(self):
        spec = self.spec
        attention = (spec.width, spec.heads, spec.kv_heads, spec.qk_norm)
        self.self_attention = MultiHeadAttention(*attention, **spec.types)
        self.cross_attention = MultiHeadAttention(*attention, **spec.types)
        self.feed_forward = FeedForward(spec)
        self.residuals = [Residual(spec, place) for place in range(3)]

    def project_memory(self, memory: Float[Array, "batch s d"]) -> KeyValue:
        """The encoder's output as this layer's cross-attention reads it."""
        return self.cross_attention.project(memory)

    def __call__(
        self,
        x: Float[Array, "batch t d"],
        valid: Bool[Array, "batch t"],
        words: Callable[[KeyValue], KeyValue],
        words_mask: Mask,
        memory: KeyValue,
        memory_mask: Mask,
        dropout: Dropout | None = None,
    ) -> tuple[Float[Array, "batch t d"], KeyValue, dict[str, Array]]:
        """The tokens after this layer, the words that self-attention read, and both attentions' weights.

        `words` maps these tokens' keys and values to all that may be read: themselves, or a cache they join.
        """
        spec = self.spec

        def read_words(x):
            read = words(self.self_attention.project(x))
            out, weights = self.self_attention(x, read, words_mask, spec.site(dropout, "attention", 0))
            return out, (read, weights)

        def read_memory(x):
            return self.cross_attention(x, memory, memory_mask, spec.site(dropout, "attention", 1))

        def feed(x):
            return self.feed_forward(x, spec.site(dropout, "hidden", 0)), None

        x, (read, own) = self.residuals[0](x, valid, dropout, read_words)
        x, cross = self.residuals[1](x, valid, dropout, read_memory)
        return self.residuals[2](x, valid, dropout, feed)[0], read, {"decoder": own, "cross": cross}
