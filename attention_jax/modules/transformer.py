"""The layers of a Transformer: attention and feed-forward, each added to its input and normalised."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from attention_jax.modules.attention import KeyValue, MultiHeadAttention
from attention_jax.modules.mixers import ALL, MIXERS, WINDOW
from attention_jax.modules.normalization import NORMS, Norm
from attention_jax.modules.positions import Places, PositionEncoding
from attention_jax.ops.dropout import Dropout, drop
from attention_jax.ops.masking import Mask, combine, window_mask
from attention_jax.ops.positions import Encoding, Spec, make_encoding, require_usable
from attention_jax.ops.shapes import require_choice

ACTIVATIONS: dict[str, Callable] = {"relu": jax.nn.relu, "gelu": jax.nn.gelu, "silu": jax.nn.silu}
SITES = ("embeddings", "residual", "attention", "hidden")


class LayerSpec(NamedTuple):
    """What all layers of a model have in common.

    `gated` makes the feed-forward (f(x W) ∘ x V) W₂ (Shazeer 2020), `norm_first` normalises before each sub-layer
    instead of after the sum (Xiong et al. 2020). `dropout_sites`: embeddings, residual (each sub-layer's output),
    attention (weights), hidden (of the feed-forward); the paper has the first two. `mixer` is "attention", or what
    stands in its place: "window" and "convolution" see `reach` tokens on a side, "gru" all.
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
    mixer: str
    reach: int
    dtype: DTypeLike
    param_dtype: DTypeLike

    @classmethod
    def of(cls, model: Any, mixer: str) -> "LayerSpec":
        """The fields of a model that are its layers', and what mixes in them."""
        return cls(mixer=mixer, **{name: getattr(model, name) for name in cls._fields if name != "mixer"})

    @property
    def types(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "param_dtype": self.param_dtype}

    def check(self) -> None:
        """Raise ValueError for what is not known, or does not divide."""
        for name in ("width", "heads", "kv_heads", "feed_forward", "reach"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: needs 1 or more.")
        for name, known in (("activation", tuple(ACTIVATIONS)), ("norm", NORMS), ("mixer", ALL)):
            require_choice(name, getattr(self, name), known)
        if self.mixer == "gru" and self.width % 2:
            raise ValueError(f"width={self.width}: mixer='gru' halves it, so that it must be even.")
        for site in self.dropout_sites:
            require_choice("dropout_sites", site, SITES)
        if self.width % self.heads or self.heads % self.kv_heads:
            raise ValueError(
                f"heads={self.heads} must divide width={self.width}, and kv_heads={self.kv_heads} must divide heads."
            )

    def encoding(self, text: str, site: str, max_length: int) -> PositionEncoding:
        """The position encoding that a text names, at a site.

        Raises ValueError where it is not defined there, or has nothing to work on in what stands in attention's place.
        """
        sizes = Spec(self.width, self.heads, self.width // self.heads, max_length, site == "decoder")
        record = _usable(text, site, sizes)
        if self.mixer in MIXERS and (record.rotate or record.bias):
            raise ValueError(f"encoding={text!r} is of attention's scores, and mixer={self.mixer!r} has none.")
        return PositionEncoding(record, sizes, self.param_dtype, parent=None)

    def attention(self, encoding: PositionEncoding | None = None) -> MultiHeadAttention:
        """Attention of this size."""
        return MultiHeadAttention(self.width, self.heads, self.kv_heads, self.qk_norm, **self.types, encoding=encoding)

    def site(self, dropout: Dropout | None, site: str, place: int) -> Dropout | None:
        """Dropout with a key of its own for one place of a site, None where the site has none."""
        if dropout is None or site not in self.dropout_sites:
            return None
        return dropout.fold(len(SITES) * place + SITES.index(site))


@functools.cache
def _usable(text: str, site: str, sizes: Spec) -> Encoding:
    record = make_encoding(text)
    require_usable(text, record, site, sizes)
    return record


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


class Reading(NamedTuple):
    """What self-attention reads: all keys and values, given these tokens' own, with where they stand and the mask."""

    mask: Mask | None
    places: Places
    join: Callable[[KeyValue], KeyValue] = lambda own: own  # to a cache that they are written into

    def by(
        self, attention: MultiHeadAttention, x: Float[Array, "batch t d"], dropout: Dropout | None
    ) -> tuple[Float[Array, "batch t d"], tuple[KeyValue, Float[Array, "batch h t s"]]]:
        """What each token reads; what all of them read from, and the weights."""
        read = self.join(attention.project(x, self.places.queries))
        out, weights = attention(x, read, self.mask, dropout, self.places)
        return out, (read, weights)


def into_cache(held: KeyValue, cursor: Int[Array, " batch"]) -> Callable[[KeyValue], KeyValue]:
    """Writes the keys and values of one token where its text's cursor is."""
    is_here_BxR = jnp.arange(held.key.shape[-2])[None] == cursor[:, None]

    def join(new):
        return KeyValue(*(jnp.where(is_here_BxR[:, None, :, None], *both) for both in zip(new, held, strict=True)))

    return join


class EncoderLayer(nn.Module):
    """Self-attention, or what stands in its place, then feed-forward; causal, it is a language model's layer."""

    spec: LayerSpec
    encoding: PositionEncoding

    def setup(self):
        spec = self.spec
        if spec.mixer in MIXERS:
            self.mixer = MIXERS[spec.mixer](spec.width, spec.reach, self.encoding.sizes.is_causal, **spec.types)
        else:
            self.self_attention = spec.attention(self.encoding)
        self.feed_forward = FeedForward(spec)
        self.residuals = [Residual(spec, place) for place in range(2)]

    def __call__(
        self, x: Float[Array, "batch s d"], valid: Bool[Array, "batch s"], reading: Reading, dropout: Dropout | None
    ) -> tuple[Float[Array, "batch s d"], KeyValue | None, Float[Array, "batch h s s"] | None]:
        """The tokens after this layer, what self-attention read, and its weights, where it is self-attention."""
        spec = self.spec
        if spec.mixer == WINDOW:
            near = window_mask(x.shape[-2], x.shape[-2], spec.reach)
            reading = reading._replace(mask=combine(reading.mask, near))

        def attend(x):
            if spec.mixer in MIXERS:
                return self.mixer(x, valid), (None, None)
            return reading.by(self.self_attention, x, spec.site(dropout, "attention", 0))

        def feed(x):
            return self.feed_forward(x, spec.site(dropout, "hidden", 0)), None

        x, (read, weights) = self.residuals[0](x, valid, dropout, attend)
        return self.residuals[1](x, valid, dropout, feed)[0], read, weights


class DecoderLayer(nn.Module):
    """Self-attention to the words before, attention to the source, then feed-forward."""

    spec: LayerSpec
    encoding: PositionEncoding

    def setup(self):
        self.self_attention = self.spec.attention(self.encoding)
        self.cross_attention = self.spec.attention()
        self.feed_forward = FeedForward(self.spec)
        self.residuals = [Residual(self.spec, place) for place in range(3)]

    def project_memory(self, memory: Float[Array, "batch s d"]) -> KeyValue:
        """The encoder's output as this layer's cross-attention reads it."""
        return self.cross_attention.project(memory)

    def __call__(
        self,
        x: Float[Array, "batch t d"],
        valid: Bool[Array, "batch t"],
        reading: Reading,
        memory: KeyValue,
        memory_mask: Mask,
        dropout: Dropout | None = None,
    ) -> tuple[Float[Array, "batch t d"], KeyValue, dict[str, Array]]:
        """The tokens after this layer, the words that self-attention read, and both attentions' weights."""
        spec = self.spec

        def read_words(x):
            return reading.by(self.self_attention, x, spec.site(dropout, "attention", 0))

        def read_memory(x):
            return self.cross_attention(x, memory, memory_mask, spec.site(dropout, "attention", 1))

        def feed(x):
            return self.feed_forward(x, spec.site(dropout, "hidden", 0)), None

        x, (read, own) = self.residuals[0](x, valid, dropout, read_words)
        x, cross = self.residuals[1](x, valid, dropout, read_memory)
        return self.residuals[2](x, valid, dropout, feed)[0], read, {"decoder": own, "cross": cross}
