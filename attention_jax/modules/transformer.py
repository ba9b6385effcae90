"""The layers of a Transformer: attention and feed-forward, each added to its input and normalised."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from attention_jax.modules.attention import UNCHANGED, AttentionSpec, Edit, Edits, Heads, KeyValue, MultiHeadAttention
from attention_jax.modules.mixers import ALL, ATTENTION, MIXERS, WINDOW
from attention_jax.modules.normalization import NORMS, Norm
from attention_jax.modules.positions import Places, PositionEncoding
from attention_jax.ops.dropout import Dropout, drop
from attention_jax.ops.masking import Mask, combine, window_mask
from attention_jax.ops.positions import Encoding, Spec, make_encoding, require_usable
from attention_jax.ops.shapes import require_choice

ACTIVATIONS: dict[str, Callable] = {"relu": jax.nn.relu, "gelu": jax.nn.gelu, "silu": jax.nn.silu}
SITES = ("embeddings", "residual", "attention", "hidden")


class LayerSpec(NamedTuple):
    """What all layers of a model have in common; a model's config has these beside the model's own fields.

    `score` and `normalize` say what attention computes, `cross_score` and `cross_normalize` where attention to the
    source differs ("": the same), and `backend` by what. `gated` makes the feed-forward (f(x W) ∘ x V) W₂ (Shazeer
    2020), `norm_first` normalises before each sub-layer instead of after the sum (Xiong et al. 2020). `dropout_sites`:
    embeddings, residual (each sub-layer's output), attention (weights), hidden (of the feed-forward); the paper has the
    first two. `mixer` is "attention", or what stands in its place: "window" and "convolution" see `reach` tokens on a
    side, "gru" all.
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
    reach: int
    mixer: str = ATTENTION
    score: str = "scaled_dot"
    normalize: str = "softmax"
    cross_score: str = ""
    cross_normalize: str = ""
    backend: str = "reference"
    dtype: DTypeLike = jnp.float32
    param_dtype: DTypeLike = jnp.float32

    @classmethod
    def split(cls, flat: Mapping[str, Any]) -> dict[str, Any]:
        """A config's fields as a model's own and, as `layer`, its layers'. Raises TypeError where one is missing."""
        own = {name: value for name, value in flat.items() if name not in cls._fields}
        return own | {"layer": cls(**{name: value for name, value in flat.items() if name in cls._fields})}

    @property
    def of_self(self) -> AttentionSpec:
        """What a text's attention to itself computes."""
        return AttentionSpec(self.score, self.normalize, self.backend)

    @property
    def of_cross(self) -> AttentionSpec:
        """What attention to the source computes."""
        return AttentionSpec(self.cross_score or self.score, self.cross_normalize or self.normalize, self.backend)

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
        self.of_cross.check()

    def encoding(self, text: str, site: str, max_length: int) -> PositionEncoding:
        """The position encoding that a text names, at a site.

        Raises ValueError where it is not defined there, or has nothing to work on in what stands in attention's place.
        """
        sizes = Spec(self.width, self.heads, self.width // self.heads, max_length, site == "decoder")
        record = _usable(text, site, sizes)
        if self.mixer in MIXERS and (record.rotate or record.bias):
            raise ValueError(f"encoding={text!r} is of attention's scores, and mixer={self.mixer!r} has none.")
        self.of_self.check(record)
        return PositionEncoding(record, sizes, self.param_dtype, parent=None)

    def attention(self, spec: AttentionSpec, encoding: PositionEncoding | None = None) -> MultiHeadAttention:
        """Attention of this size."""
        sizes = (self.width, self.heads, self.kv_heads, self.qk_norm)
        return MultiHeadAttention(*sizes, spec, **self.types, encoding=encoding)

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


class Look(NamedTuple):
    """What is changed of a layer's heads, and whether to tell what they do."""

    edit: Edit = UNCHANGED
    with_heads: bool = False


PLAIN = Look()


def look_at(edits: Edits, kind: str, layer: int, with_heads: bool) -> Look:
    """A layer's part of what a call asks of one kind of attention; arrays of `edits` have layers first."""
    return Look(jax.tree.map(lambda array: array[layer], edits.get(kind, UNCHANGED)), with_heads)


class Reading(NamedTuple):
    """What self-attention reads: all keys and values, given these tokens' own, with where they stand and the mask."""

    mask: Mask | None
    places: Places
    join: Callable[[KeyValue], KeyValue] = lambda own: own  # to a cache that they are written into

    def by(
        self, attention: MultiHeadAttention, x: Float[Array, "batch t d"], dropout: Dropout | None, look: Look
    ) -> tuple[Float[Array, "batch t d"], tuple[KeyValue, Heads | None]]:
        """What each token reads; what all of them read from, and what the heads did."""
        read = self.join(attention.project(x, self.places.queries))
        out, heads = attention(x, read, self.mask, dropout, self.places, *look)
        return out, (read, heads)


def into_cache(held: KeyValue, cursor: Int[Array, " batch"]) -> Callable[[KeyValue], KeyValue]:
    """Writes the keys and values of new tokens from where each text's cursor is; what has no room is left out."""
    place_BxR = jnp.arange(held.key.shape[-2])[None] - cursor[:, None]  # which of the new ones a place holds

    def written(new_BxNxTxF, held_BxNxRxF):
        count = new_BxNxTxF.shape[-2]
        is_new = (place_BxR >= 0) & (place_BxR < count)
        if count > 1:
            place = jnp.clip(place_BxR, 0, count - 1)[:, None, :, None]
            new_BxNxTxF = jnp.take_along_axis(new_BxNxTxF, place, axis=-2)
        return jnp.where(is_new[:, None, :, None], new_BxNxTxF, held_BxNxRxF)

    def join(new):
        return KeyValue(*map(written, new, held))

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
            self.self_attention = spec.attention(spec.of_self, self.encoding)
        self.feed_forward = FeedForward(spec)
        self.residuals = [Residual(spec, place) for place in range(2)]

    def __call__(
        self,
        x: Float[Array, "batch s d"],
        valid: Bool[Array, "batch s"],
        reading: Reading,
        dropout: Dropout | None,
        look: Look = PLAIN,
    ) -> tuple[Float[Array, "batch s d"], KeyValue | None, Heads | None]:
        """The tokens after this layer, what self-attention read, and what its heads did; None of other mixers."""
        spec = self.spec
        if spec.mixer == WINDOW:
            near = window_mask(x.shape[-2], x.shape[-2], spec.reach)
            reading = reading._replace(mask=combine(reading.mask, near))

        def attend(x):
            if spec.mixer in MIXERS:
                return self.mixer(x, valid), (None, None)
            return reading.by(self.self_attention, x, spec.site(dropout, "attention", 0), look)

        def feed(x):
            return self.feed_forward(x, spec.site(dropout, "hidden", 0)), None

        x, (read, heads) = self.residuals[0](x, valid, dropout, attend)
        return self.residuals[1](x, valid, dropout, feed)[0], read, heads


class DecoderLayer(nn.Module):
    """Self-attention to the words before, attention to the source, then feed-forward."""

    spec: LayerSpec
    encoding: PositionEncoding

    def setup(self):
        self.self_attention = self.spec.attention(self.spec.of_self, self.encoding)
        self.cross_attention = self.spec.attention(self.spec.of_cross)
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
        looks: Mapping[str, Look] = {},
    ) -> tuple[Float[Array, "batch t d"], KeyValue, dict[str, Heads | None]]:
        """The tokens after this layer, the words that self-attention read, and what the heads of both attentions did.

        `looks` are by kind, "decoder" and "cross".
        """
        spec = self.spec

        def read_words(x):
            return reading.by(self.self_attention, x, spec.site(dropout, "attention", 0), looks.get("decoder", PLAIN))

        def read_memory(x):
            site, look = spec.site(dropout, "attention", 1), looks.get("cross", PLAIN)
            return self.cross_attention(x, memory, memory_mask, site, None, *look)

        def feed(x):
            return self.feed_forward(x, spec.site(dropout, "hidden", 0)), None

        x, (read, own) = self.residuals[0](x, valid, dropout, read_words)
        x, cross = self.residuals[1](x, valid, dropout, read_memory)
        return self.residuals[2](x, valid, dropout, feed)[0], read, {"decoder": own, "cross": cross}
