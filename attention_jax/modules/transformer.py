"""The layers of a Transformer: attention and feed-forward, each added to its input and normalised."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float

from attention_jax.modules.attention import Edit, KeyValue, MultiHeadAttention, Shown
from attention_jax.modules.families import CAUSAL
from attention_jax.modules.families import PLAIN as PLAIN_FAMILY
from attention_jax.modules.mixers import ATTENTION, LATENT, Mixer, by_text, is_window, make_mixer
from attention_jax.modules.normalization import NORMS, Norm
from attention_jax.modules.positions import PositionEncoding
from attention_jax.modules.reading import PLAIN, Look, Reading
from attention_jax.modules.spec import AttentionSpec, cross_spec
from attention_jax.modules.streaming import StreamingAttention
from attention_jax.ops.cache import Held
from attention_jax.ops.dropout import Dropout, drop
from attention_jax.ops.masking import Mask, combine, window_mask
from attention_jax.ops.naming import parse
from attention_jax.ops.patterns import ALL, Pattern, Stream, make_pattern
from attention_jax.ops.placing import over_features
from attention_jax.ops.positions import Encoding, Spec, make_encoding, require_usable
from attention_jax.ops.shapes import require_choice, require_unset

ACTIVATIONS: dict[str, Callable] = {"relu": jax.nn.relu, "gelu": jax.nn.gelu, "silu": jax.nn.silu}
SITES = ("embeddings", "residual", "attention", "hidden")
# What is saved of a layer for its backward pass, which computes the rest again; "none": nothing is computed again.
REMAT: dict[str, Callable | None] = {
    "none": None,
    "full": jax.checkpoint_policies.nothing_saveable,
    "dots": jax.checkpoint_policies.dots_saveable,
    "dots_no_batch": jax.checkpoint_policies.dots_with_no_batch_dims_saveable,
}


class LayerSpec(NamedTuple):
    """What all layers of a model have in common. A model's config has these fields beside the model's own.

    - `score`, `normalize`, `backend`, `family`: as in `AttentionSpec`; attention to the source has `cross_score` and
      `cross_normalize`, or the same as self-attention where they are "", and a `cross_family` of its own.
    - `gated`: the feed-forward is (f(x W) ∘ x V) W₂ (Shazeer 2020).
    - `norm_first`: normalise before each sub-layer, not after the sum (Xiong et al. 2020).
    - `dropout_sites`: embeddings, residual (each sub-layer's output), attention (weights), hidden (of the
      feed-forward). The paper has the first two.
    - `mixer`: "attention", or what replaces it (`modules/mixers.py`). "window" and "convolution" see `reach` tokens on
      a side, others all.
    - `pattern`: which keys of its text a token attends to (`ops/patterns.py`); of a translator, in the decoder.
    - `stacked`: the model has all layers' parameters as one tree, and scans over it (`modules/stacking.py`).
    - `remat`: what the backward pass computes again of a layer, in order to save memory (Chen et al. 2016): "none";
      "full": all; "dots": all but matrix products; "dots_no_batch": all but products with parameters.
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
    pattern: str = ALL
    score: str = "scaled_dot"
    normalize: str = "softmax"
    cross_score: str = ""
    cross_normalize: str = ""
    family: str = PLAIN_FAMILY
    cross_family: str = PLAIN_FAMILY
    backend: str = "reference"
    stacked: bool = False
    remat: str = "none"
    dtype: DTypeLike = jnp.float32
    param_dtype: DTypeLike = jnp.float32

    @classmethod
    def split(cls, flat: Mapping[str, Any]) -> dict[str, Any]:
        """A config's fields as a model's: its own, and as `layer` the others. Raises TypeError if one is missing."""
        own = {name: value for name, value in flat.items() if name not in cls._fields}
        return own | {"layer": cls(**{name: value for name, value in flat.items() if name in cls._fields})}

    @property
    def of_self(self) -> AttentionSpec:
        """Attention of a text to itself."""
        return AttentionSpec(self.score, self.normalize, self.backend, family=self.family)

    @property
    def of_cross(self) -> AttentionSpec:
        """Attention to the source."""
        names = self.score, self.normalize, self.cross_score, self.cross_normalize
        return cross_spec(*names, self.backend, self.cross_family)

    @property
    def mixing(self) -> Mixer:
        """What `mixer` names."""
        return make_mixer(self.mixer)

    @property
    def of_pattern(self) -> Pattern:
        """What `pattern` names."""
        return make_pattern(self.pattern)

    @property
    def types(self) -> dict[str, Any]:
        return {"dtype": self.dtype, "param_dtype": self.param_dtype}

    def check(self) -> None:
        """Raise ValueError for unknown names, and for sizes that are too small or do not divide one another."""
        for name in ("width", "heads", "kv_heads", "feed_forward", "reach"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: needs 1 or more.")
        named = {"activation": tuple(ACTIVATIONS), "norm": NORMS, "remat": tuple(REMAT)}
        for name, known in named.items():
            require_choice(name, getattr(self, name), known)
        self.mixing.require(self)
        for site in self.dropout_sites:
            require_choice("dropout_sites", site, SITES)
        if self.width % self.heads:
            raise ValueError(f"heads={self.heads}: must divide width={self.width}.")
        for spec in (self.of_self, self.of_cross):
            if self.width // self.heads % spec.of_family.parts:
                raise ValueError(
                    f"{spec.family_key}={spec.family!r}: cuts a head in halves, and its size is width/heads = "
                    f"{self.width // self.heads}. Choose fewer heads."
                )
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads={self.kv_heads}: must divide heads={self.heads}.")
        self.of_self.check()
        self.of_cross.check()
        self.check_pattern()

    def check_pattern(self, of: str = "") -> None:
        """Raise ValueError for a pattern that attention here cannot follow; `of` opens the keys of its kind."""
        stream, written = make_pattern(self.pattern, f"{of}pattern").stream, f"{of}pattern={self.pattern!r}"
        if self.pattern == ALL:
            return
        if parse(self.mixer)[0] not in (ATTENTION, LATENT):
            raise ValueError(f"{written}: {of}mixer={self.mixer!r} does not read it. Set {of}pattern={ALL!r}.")
        if self.of_self.of_family.kinds == CAUSAL:
            raise ValueError(f"{written}: family={self.family!r} needs every key before a query. Set pattern={ALL!r}.")
        if stream and (self.mixer != ATTENTION or self.of_self.attention().score.room is not None):
            raise ValueError(
                f"{written}: keeps keys in another order than the text's, which mixer={self.mixer!r} "
                f"with score={self.score!r} cannot read. Choose mixer={ATTENTION!r} and score='scaled_dot'."
            )

    def require_read(self) -> None:
        """Raise ValueError for what only attention reads, of a model whose only attention may be the mixer's."""
        if self.mixing.attends:
            return
        self.require_unset(("score", "normalize", "family"), f"mixer={self.mixer!r} has no attention to read it")
        if "attention" in self.dropout_sites:
            raise ValueError(
                f"dropout_sites={self.dropout_sites}: mixer={self.mixer!r} has no weights of attention to drop. Leave "
                "'attention' out."
            )

    def require_unset(self, names: tuple[str, ...], because: str) -> None:
        """Raise ValueError for a field of `names` that is not its default, with the reason why nothing reads it."""
        require_unset(self, {name: self._field_defaults[name] for name in names}, because)

    def require_unedited(self, edit: Edit) -> None:
        """Raise ValueError for an edit of heads that the mixer has not."""
        if any(part is not None for part in edit):
            raise ValueError(f"mixer={self.mixer!r}: has no attention whose heads could be edited.")

    def encoding(self, key: str, text: str, kind: str, max_length: int) -> PositionEncoding:
        """The position encoding that `text`, the value of a config's `key`, names, for one kind of attention.

        Raises ValueError for an encoding that is not defined for the kind, or acts on scores that the mixer has not.
        """
        parts = self.of_self.of_family.parts
        features = self.mixing.turned or self.width // self.heads // parts
        sizes = Spec(self.width, self.heads, features, max_length, kind == "decoder")
        record = _usable(key, text, kind, sizes)
        if record.mix and parts > 1:
            raise ValueError(
                f"{key}={text!r}: adds to values, which family={self.family!r} does not cut as it cuts keys; choose "
                "another."
            )
        mixing, adds = self.mixing, record.bias or record.mix
        mixer = f"{'encoder_' if kind == 'encoder' else ''}mixer={self.mixer!r}"
        if (adds and not mixing.biases) or (record.rotate and not mixing.turns):
            others = f"none, {'rotary, ' if mixing.turns else ''}sinusoidal, learned or binary"
            raise ValueError(
                f"{key}={text!r}: acts on scores or what makes them, which {mixer} does not let it. Choose {others}."
            )
        if kind == "encoder" and not mixing.goes_back:
            raise ValueError(f"{mixer}: reads in one direction alone, and an encoder in both. Choose another.")
        self.of_self.check(record)
        return PositionEncoding(record, sizes, self.param_dtype, parent=None)

    def attention(
        self, spec: AttentionSpec, encoding: PositionEncoding | None = None, stream: Stream | None = None
    ) -> MultiHeadAttention:
        """Attention of this size, to a stream if there is one."""
        sizes = (self.width, self.heads, self.kv_heads, self.qk_norm)
        if stream is not None:
            return StreamingAttention(*sizes, spec, **self.types, encoding=encoding, stream=stream)
        return MultiHeadAttention(*sizes, spec, **self.types, encoding=encoding)

    def dropout_at(self, site: str, index: int, dropout: Dropout | None) -> Dropout | None:
        """Dropout at a site, with another key for each `index`; None if the site has no dropout."""
        if dropout is None or site not in self.dropout_sites:
            return None
        return dropout.fold(len(SITES) * index + SITES.index(site))


@functools.cache
def _usable(key: str, text: str, kind: str, sizes: Spec) -> Encoding:
    record = make_encoding(text, key)
    require_usable(text, record, kind, sizes, key)
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
        return dense(spec.width, "out")(drop(over_features(hidden), dropout))


class Residual(nn.Module):
    """norm(x + f(x)), or x + f(norm(x)) with `norm_first`. f returns the term of the sum, and anything else."""

    spec: LayerSpec
    index: int  # among the layer's sub-layers

    @nn.compact
    def __call__(
        self, x: Float[Array, "batch t d"], valid: Bool[Array, "batch t"], dropout: Dropout | None, sublayer: Callable
    ) -> tuple[Float[Array, "batch t d"], Any]:
        norm = Norm(self.spec.norm, self.spec.param_dtype, name="norm")
        is_training = dropout is not None
        change, more = sublayer(norm(x, valid, is_training) if self.spec.norm_first else x)
        x = x + drop(change, self.spec.dropout_at("residual", self.index, dropout))
        return (x if self.spec.norm_first else norm(x, valid, is_training)), more


class EncoderLayer(nn.Module):
    """Self-attention, or another mixer, then feed-forward. With a causal mask it is a language model's layer."""

    spec: LayerSpec
    encoding: PositionEncoding

    def setup(self):
        spec = self.spec
        if spec.mixing.attends:
            self.self_attention = spec.mixing.make(spec, self.encoding)
        else:
            self.mixer = spec.mixing.make(spec, self.encoding)
        self.feed_forward = FeedForward(spec)
        self.residuals = [Residual(spec, index) for index in range(2)]

    def init_cache(self, batch: int, room: int) -> Held:
        """What this layer holds of texts before their first token, with room for `room` tokens."""
        return (self.self_attention if self.spec.mixing.attends else self.mixer).init_cache(batch, room)

    def __call__(
        self,
        x: Float[Array, "batch s d"],
        valid: Bool[Array, "batch s"],
        reading: Reading,
        dropout: Dropout | None,
        look: Look = PLAIN,
    ) -> tuple[Float[Array, "batch s d"], Held | None, Shown]:
        """The tokens after this layer, what it holds now if there is a cache, and what each head did, if any."""
        spec = self.spec
        if is_window(spec.mixer):
            near = window_mask(x.shape[-2], reading.positions.keys.shape[-1], spec.reach, reading.before)
            reading = reading._replace(mask=combine(reading.mask, near))

        def attend(x):
            if not spec.mixing.attends:
                spec.require_unedited(look.edit)
                out, held = self.mixer(x, valid, reading.positions.queries, reading.held)
                return out, (held, None)
            return reading.by(self.self_attention, x, valid, spec.dropout_at("attention", 0, dropout), look)

        def feed(x):
            return self.feed_forward(x, spec.dropout_at("hidden", 0, dropout)), None

        x, (held, heads) = self.residuals[0](x, valid, dropout, attend)
        return self.residuals[1](x, valid, dropout, feed)[0], held, heads


class DecoderLayer(nn.Module):
    """Self-attention to the words before, attention to the source, then feed-forward."""

    spec: LayerSpec
    encoding: PositionEncoding

    def setup(self):
        if self.spec.mixing.attends:
            self.self_attention = self.spec.mixing.make(self.spec, self.encoding)
        else:
            self.mixer = self.spec.mixing.make(self.spec, self.encoding)
        self.cross_attention = self.spec.attention(self.spec.of_cross)
        self.feed_forward = FeedForward(self.spec)
        self.residuals = [Residual(self.spec, index) for index in range(3)]

    def init_cache(self, batch: int, room: int) -> Held:
        """What this layer holds of texts before their first token, with room for `room` tokens."""
        return (self.self_attention if self.spec.mixing.attends else self.mixer).init_cache(batch, room)

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
    ) -> tuple[Float[Array, "batch t d"], Held | None, dict[str, Shown]]:
        """The tokens after this layer, what it holds now if there is a cache, and what each head did, by kind.

        `looks` are by kind, "decoder" and "cross".
        """
        spec, look, cross_look = self.spec, looks.get("decoder", PLAIN), looks.get("cross", PLAIN)

        def read_words(x):
            if not spec.mixing.attends:
                spec.require_unedited(look.edit)
                out, held = by_text(self.mixer, x, reading.positions.queries, reading.held)
                return out, (held, None)
            return reading.by(self.self_attention, x, valid, spec.dropout_at("attention", 0, dropout), look)

        def read_memory(x):
            on_weights = spec.dropout_at("attention", 1, dropout)
            return self.cross_attention(x, memory, memory_mask, on_weights, None, *cross_look)

        def feed(x):
            return self.feed_forward(x, spec.dropout_at("hidden", 0, dropout)), None

        x, (held, own) = self.residuals[0](x, valid, dropout, read_words)
        x, cross = self.residuals[1](x, valid, dropout, read_memory)
        return self.residuals[2](x, valid, dropout, feed)[0], held, {"decoder": own, "cross": cross}
