"""Multi-head attention: it owns the parameters and the axis of heads; a backend computes the rest."""

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from attention_jax import backends
from attention_jax.modules.mixers import WINDOW
from attention_jax.modules.positions import PositionEncoding, QueryKeyPositions
from attention_jax.ops.attention import Attention, Relative, Replacement, require_fitting
from attention_jax.ops.cache import Held, written
from attention_jax.ops.dropout import Dropout
from attention_jax.ops.encoding import Encoding, PairBias
from attention_jax.ops.masking import Mask, combine, window_mask, with_axes
from attention_jax.ops.normalization import rms_norm
from attention_jax.ops.normalizing import make_normalizer
from attention_jax.ops.placing import over_features
from attention_jax.ops.positions import make_encoding
from attention_jax.ops.scoring import make_score
from attention_jax.ops.statistics import Statistics, Summary, attend_with_statistics

POSITIONS = ("positions", "encoder_positions", "decoder_positions")  # keys of models that name encodings


class AttentionSpec(NamedTuple):
    """Attention as a config names it: a score, a normalizer, a backend, as "gaussian:width=2", "sigmoid", "chunked".

    `score_key` and `normalize_key` are the config's keys for the two, which errors name.
    """

    score: str = "scaled_dot"
    normalize: str = "softmax"
    backend: str = "reference"
    score_key: str = "score"
    normalize_key: str = "normalize"

    def attention(self, encoding: Encoding | None = None) -> Attention:
        """The record, without arrays. Raises ValueError for unknown names, and for names that do not go together."""
        relative = Relative(encoding.bias, mix=encoding.mix, pairs=encoding.pairs) if encoding else Relative()
        score = make_score(self.score, self.score_key)
        record = Attention(score, (), make_normalizer(self.normalize, self.normalize_key), relative=relative)
        require_fitting(record, self.score, self.normalize)
        return record

    def check(self, encoding: Encoding | None = None) -> None:
        """Raise ValueError for unknown names, names that do not go together, and what the backend cannot do."""
        backends.require(self.backend, self.attention(encoding))


def cross_spec(score: str, normalize: str, cross_score: str, cross_normalize: str, backend: str) -> AttentionSpec:
    """Attention to the source: as a text's attention to itself, but for a `cross_…` that is not empty."""
    return AttentionSpec(
        cross_score or score,
        cross_normalize or normalize,
        backend,
        "cross_score" if cross_score else "score",
        "cross_normalize" if cross_normalize else "normalize",
    )


def with_backend(
    flat: Mapping[str, Any], length: int, masks: Sequence[Mask | None], tell: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """A model's fields, with its `backend` replaced by the one that computes attention to up to `length` tokens.

    `masks` are those of all its texts, at that length; `tell` is told why backends before the chosen one are not.
    Raises ValueError if no backend that is named can do what is asked.
    """
    names = flat["score"], flat["normalize"]
    cross = cross_spec(*names, flat.get("cross_score", ""), flat.get("cross_normalize", ""), "reference")
    encodings = [make_encoding(flat[key], key) for key in POSITIONS if key in flat]
    own = [AttentionSpec(*names).attention(encoding) for encoding in (*encodings, None)[: len(encodings) or 1]]
    if WINDOW in (flat.get("mixer"), flat.get("encoder_mixer")):
        masks = [combine(mask, window_mask(length, length, flat["reach"])) for mask in masks]
    asked = [record._replace(mask=mask) for record in (*own, cross.attention()) for mask in masks]
    size = flat["width"] // flat["heads"] if flat.get("heads") else None
    call = backends.Call(str(flat["dtype"]), None, length, size, size, "attention" in flat["dropout_sites"])
    return {**flat, "backend": backends.choose(flat["backend"], asked, call, tell)}


class KeyValue(NamedTuple):
    """Keys and values, projected and split into heads: `[batch, heads, tokens, features]`."""

    key: Float[Array, "batch h s f"]
    value: Float[Array, "batch h s f"]


class Heads(NamedTuple):
    """Each head's weights, before dropout, and its output, before the heads are joined."""

    weights: Float[Array, "batch h q k"]
    outputs: Float[Array, "batch h q f"]


Shown = Heads | Statistics | None  # what each head did, or statistics of its weights, if they were asked for


def batch_first(heads: Any) -> Any:
    """What the heads of all layers did, `[layers, batch, heads, …]`, as `[batch, layers, heads, …]`."""
    return jax.tree.map(lambda array: jnp.moveaxis(array, 0, 1), heads)


class Edit(NamedTuple):
    """Changes of heads; a part that is None changes nothing. All parts are arrays, so that a `vmap` may go over them.

    `gate` multiplies each head's output: 0 removes the head. Heads that are `replaced` get these `weights`, or
    `outputs`.
    """

    gate: Float[Array, " h"] | None = None
    replaced: Bool[Array, " h"] | None = None
    weights: Float[Array, "#batch h q k"] | None = None
    outputs: Float[Array, "#batch h q f"] | None = None


UNCHANGED = Edit()
Edits = Mapping[str, Edit]  # by kind of attention, with layers as the first axis of every array
NO_EDITS: Edits = types.MappingProxyType({})


def require_gates(edits: Edits) -> None:
    """Raise ValueError where heads are replaced while a text grows: what replaces them is of one length."""
    for kind, edit in edits.items():
        if any(part is not None for part in edit._replace(gate=None)):
            raise ValueError(
                f"edits[{kind!r}]: word by word a head can have a gate alone; replaced weights and outputs are of one "
                "length, and a text that is written grows."
            )


class MultiHeadAttention(nn.Module):
    """normalise(score(Q_h, K_h)) V_h for every head h, side by side, times W_o (Vaswani et al. 2017, §3.2.2).

    `kv_heads` heads of keys and values serve `heads` heads of queries: fewer make it grouped-query attention (Ainslie
    et al. 2023), one makes it multi-query attention (Shazeer 2019). `qk_norm` takes the RMS norm of every query and key
    (Dehghani et al. 2023, §2.1). `encoding` turns queries and keys, and adds to scores and values. A layer's heads have
    projections of their own and share the score's parameters; each has its own learned sink.
    """

    width: int
    heads: int
    kv_heads: int
    qk_norm: bool
    spec: AttentionSpec = AttentionSpec()
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
        self.score_params = make_score(self.spec.score).init_with(self.param, size, size, size, self.param_dtype)
        self.sinks = make_normalizer(self.spec.normalize).init_with(self.param, self.heads, self.param_dtype)

    def project(self, memory: Float[Array, "batch s d"], positions: Int[Array, "#batch s"] | None = None) -> KeyValue:
        """The keys and values of a memory, made once for all queries; an encoding needs the keys' `positions`."""
        key = self._split(memory @ self.matrices["key"].astype(self.dtype), self.kv_heads)
        value = self._split(memory @ self.matrices["value"].astype(self.dtype), self.kv_heads)
        return KeyValue(self._rotated(rms_norm(key, self.gains["key"]) if self.qk_norm else key, positions), value)

    def init_cache(self, batch: int, room: int) -> Held:
        """What is held of texts before their first token, with room for `room` tokens: keys and values."""
        shape = (batch, self.kv_heads, room, self.width // self.heads)
        return Held(KeyValue(jnp.zeros(shape, self.dtype), jnp.zeros(shape, self.dtype)))

    def remember(
        self, x: Float[Array, "batch t d"], positions: Int[Array, "#batch t"], held: Held, first: Int[Array, " batch"]
    ) -> Held:
        """What was held, and the keys and values of new tokens, from each text's place `first` in history on."""
        return held._replace(history=written(held.history, self.project(x, positions), first))

    def __call__(
        self,
        x: Float[Array, "batch t d"],
        memory: KeyValue,
        mask: Mask | None,
        dropout: Dropout | None = None,
        positions: QueryKeyPositions | None = None,
        edit: Edit = UNCHANGED,
        with_heads: bool = False,
        is_cached: bool = False,
        summary: Summary | None = None,
    ) -> tuple[Float[Array, "batch t d"], Shown]:
        """What each token of `x` reads from the memory; what each head did if `with_heads`, and with a `summary` that.

        `mask` is `[..., T, S]`, without heads. With `with_heads` the backend is `reference`, whichever one trains, and
        with a `summary` the same in blocks of queries; of a cache it is one that reads caches.
        """
        query_BxNxTxF = self._split(x @ self.matrices["query"].astype(self.dtype), self.heads)
        if self.qk_norm:
            query_BxNxTxF = rms_norm(query_BxNxTxF, self.gains["query"])
        query_BxKxGxTxF = self._grouped(self._rotated(query_BxNxTxF, positions and positions.queries))
        read = query_BxKxGxTxF, memory.key[:, :, None], memory.value[:, :, None]
        asked = self._asked(mask, positions, edit) | {"dropout": dropout}
        told: Any
        if summary is not None:
            values, told = attend_with_statistics(*read, summary.with_axes(2), **asked)
        else:
            backend = backends.of_caches(self.spec.backend) if is_cached else self.spec.backend
            name = "reference" if with_heads else backend
            values, told = backends.attend(name, *read, **asked, with_weights=with_heads)
        outputs_BxNxTxF = edited(self._joined(values), edit)
        outputs_BxTxNxF = jnp.moveaxis(outputs_BxNxTxF, -3, -2)
        joined_BxTxD = outputs_BxTxNxF.reshape(*outputs_BxTxNxF.shape[:-2], self.width)
        shown = jax.tree.map(self._joined, told)
        return joined_BxTxD @ self.out.astype(self.dtype), Heads(shown, outputs_BxNxTxF) if with_heads else shown

    def _asked(self, mask: Mask | None, positions: QueryKeyPositions | None, edit: Edit) -> dict[str, Any]:
        """What is asked of attention, beside queries, keys and values: the keywords of `backends.attend`."""
        return {
            "score": self.spec.score,
            "score_params": tuple(array.astype(self.dtype) for array in self.score_params),
            "normalize": self.spec.normalize,
            "normalizer_params": tuple(self._by_group(sink) for sink in self.sinks),
            "mask": None if mask is None else with_axes(mask, 2),
            "relative": self._relative(positions),
            "replacement": self._replacement(edit),
        }

    def _relative(self, positions: QueryKeyPositions | None) -> Relative:
        """The encoding's bias and mix, for heads that are grouped by the keys that they share."""
        if self.encoding is None or positions is None:
            return Relative()
        record, values = self.encoding.record, self.encoding.values
        bias, mix, pairs = record.bias, record.mix, record.pairs
        return Relative(
            bias=bias and (lambda params, query, *both: self._grouped(bias(params, self._joined(query), *both))),
            mix=mix and (lambda params, weights, *both: self._grouped(mix(params, self._joined(weights), *both))),
            params=values,
            queries=positions.queries,
            keys=positions.keys,
            pairs=pairs and (lambda params, heads: self._pairs_by_group(pairs(params, self.heads))),
        )

    def _replacement(self, edit: Edit) -> Replacement | None:
        if edit.weights is None or edit.replaced is None:
            return None
        return Replacement(self._by_group(edit.replaced), self._grouped(edit.weights))

    def _by_group(self, of_heads: Array) -> Array:
        """[heads] → [kv_heads, groups, 1, 1]."""
        return of_heads.reshape(self.kv_heads, self.heads // self.kv_heads, 1, 1)

    def _pairs_by_group(self, pairs: PairBias) -> PairBias:
        return pairs._replace(numbers=pairs.numbers.reshape(self.kv_heads, self.heads // self.kv_heads, -1))

    def _rotated(self, x: Array, positions: Array | None) -> Array:
        return x if self.encoding is None or positions is None else self.encoding.rotate(x, positions)

    def _grouped(self, x_BxNxTxF: Array) -> Array:
        """Heads, grouped by the keys and values that they share: `[batch, kv_heads, groups, …]`."""
        batch, _, *rest = x_BxNxTxF.shape
        return x_BxNxTxF.reshape(batch, self.kv_heads, self.heads // self.kv_heads, *rest)

    def _joined(self, x_BxKxGxTxS: Any) -> Array:
        return x_BxKxGxTxS.reshape(len(x_BxKxGxTxS), self.heads, *x_BxKxGxTxS.shape[3:])

    def _split(self, x_BxTxD: Array, heads: int) -> Array:
        x_BxTxNxF = x_BxTxD.reshape(*x_BxTxD.shape[:-1], heads, -1)
        return over_features(jnp.moveaxis(x_BxTxNxF, -2, -3), axis=-3)


def edited(outputs_BxNxTxF: Array, edit: Edit) -> Array:
    """Heads' outputs `[batch, heads, Q, F]`, replaced and gated."""
    if edit.outputs is not None and edit.replaced is not None:
        outputs_BxNxTxF = jnp.where(edit.replaced[None, :, None, None], edit.outputs, outputs_BxNxTxF)
    if edit.gate is not None:
        outputs_BxNxTxF *= edit.gate.astype(outputs_BxNxTxF.dtype)[None, :, None, None]
    return outputs_BxNxTxF
