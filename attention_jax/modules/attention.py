"""Multi-head attention: it owns the parameters and the axis of heads; a backend computes the rest."""

import functools
import types
from collections.abc import Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from attention_jax import backends
from attention_jax.modules.families import Sizes
from attention_jax.modules.grouping import Grouping
from attention_jax.modules.positions import PositionEncoding, QueryKeyPositions
from attention_jax.modules.spec import AttentionSpec
from attention_jax.ops.attention import Attention, Relative, Replacement
from attention_jax.ops.cache import Held, written
from attention_jax.ops.dropout import Dropout
from attention_jax.ops.families import decay_of_rows, selected_after, selected_before, with_decay
from attention_jax.ops.masking import Mask, with_axes, with_mask
from attention_jax.ops.normalization import rms_norm
from attention_jax.ops.normalizing import make_normalizer
from attention_jax.ops.placing import over_features
from attention_jax.ops.pooling import pooled
from attention_jax.ops.scoring import make_score
from attention_jax.ops.statistics import Statistics, Summary, pooled_with_statistics


class KeyValue(NamedTuple):
    """Keys and values, projected and split into heads: `[batch, heads, tokens, features]`.

    Where heads forget, `log_forgets` has ln of what each head of queries keeps of the tokens before each. Where queries
    select, `taken` is what those that were read before take from the scores of these keys, of every text that stands in
    a cache.
    """

    key: Float[Array, "batch h s f"]
    value: Float[Array, "batch h s f"]
    log_forgets: Float[Array, "batch n s 1"] | None = None
    taken: Float[Array, "batch *texts room"] | None = None


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


def require_layers(edits: Edits, layers: Mapping[str, int]) -> None:
    """Raise ValueError for a kind of attention that a model does not have, or arrays of another number of layers.

    `layers` says how many layers each kind of the model's attention has.
    """
    for kind, edit in edits.items():
        if kind not in layers:
            raise ValueError(f"edits[{kind!r}]: this model's kinds of attention are {', '.join(layers) or 'none'}.")
        for name, array in edit._asdict().items():
            if array is not None and (not array.ndim or array.shape[0] != layers[kind]):
                raise ValueError(
                    f"edits[{kind!r}].{name} has shape {array.shape}: its first axis is {layers[kind]} layers."
                )


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
        size, family = self.width // self.heads, self.spec.of_family
        glorot, part = nn.initializers.glorot_uniform(), size // family.parts
        shapes = {"query": self.heads, "key": self.kv_heads, "value": self.kv_heads}
        self.matrices = {
            name: self.param(name, glorot, (self.width, heads * size), self.param_dtype)
            for name, heads in shapes.items()
        }
        self.out = self.param("out", glorot, (self.width, self.width), self.param_dtype)
        if self.qk_norm:
            self.gains = {
                name: self.param(f"{name}_gain", nn.initializers.ones, (part,), self.param_dtype)
                for name in ("query", "key")
            }
        self.score_params = make_score(self.spec.score).init_with(self.param, part, part, part, self.param_dtype)
        self.sinks = make_normalizer(self.spec.normalize).init_with(self.param, self.heads, self.param_dtype)
        self.family_params = {
            name: self.param(name, *parameter, self.param_dtype)
            for name, parameter in family.parameters(Sizes(self.width, self.heads, size)).items()
        }

    def project(self, memory: Float[Array, "batch s d"], positions: Int[Array, "#batch s"] | None = None) -> KeyValue:
        """The keys and values of a memory, made once for all queries; an encoding needs the keys' `positions`."""
        value = self._split(memory @ self.matrices["value"].astype(self.dtype), self.kv_heads)
        log_forgets, family = None, self.spec.of_family
        if family.log_forgets is not None:
            log_forgets = family.log_forgets(self.family_params, memory)[..., None]
        return KeyValue(self._scored("key", memory, self.kv_heads, positions), value, log_forgets)

    def init_cache(self, batch: int, room: int) -> Held:
        """What is held of texts before their first token, with room for `room` tokens: keys and values.

        A family that forgets keeps more of every key; one that selects has a state.
        """
        shape, family = (batch, self.kv_heads, room, self.width // self.heads), self.spec.of_family
        history = KeyValue(jnp.zeros(shape, self.dtype), jnp.zeros(shape, self.dtype))
        if family.log_forgets is not None:
            history = history._replace(log_forgets=jnp.zeros((batch, self.heads, room, 1), jnp.float32))
        return Held(history, None if family.selections is None else jnp.zeros((batch, room)))

    def remember(
        self, x: Float[Array, "batch t d"], positions: Int[Array, "#batch t"], held: Held, first: Int[Array, " batch"]
    ) -> Held:
        """What was held, and the keys and values of new tokens, from each text's place `first` in history on."""
        return held._replace(history=written(held.history, self.project(x, positions), first))

    def recall(
        self,
        x: Float[Array, "batch t d"],
        valid: Bool[Array, "batch t"],
        mask: Mask | None,
        positions: QueryKeyPositions,
        held: Held,
        first: Int[Array, " batch"],
    ) -> tuple[KeyValue, Held]:
        """What the tokens of `x` read, themselves and what was held; and what is held after those that are valid."""
        held = self.remember(x, positions.queries, held, first)
        read = held.history._replace(taken=held.state)
        return read, held._replace(state=self.selected(x, read, mask, positions, valid))

    def selected(
        self,
        x: Float[Array, "batch t d"],
        memory: KeyValue,
        mask: Mask | None,
        positions: QueryKeyPositions,
        valid: Bool[Array, "batch t"],
    ) -> Float[Array, "batch *texts room"] | None:
        """`memory.taken` after the queries of `x` that are valid; None for a family that selects nothing."""
        if memory.taken is None:
            return None
        query = self._scored("query", x, self.heads, positions.queries)
        found = self._selections(query, memory, None if mask is None else with_axes(mask, 2))
        return selected_after(jnp.where(valid[..., None], found, 0), memory.taken)

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
        depth: Array | int = 0,
    ) -> tuple[Float[Array, "batch t d"], Shown]:
        """What each token of `x` reads from the memory; what each head did if `with_heads`, and with a `summary` that.

        `mask` is `[..., T, S]`, without heads; `depth` is the layer's number. With `with_heads`, and where an edit has
        weights, the backend is `reference`, whichever one trains, and with a `summary` the same in blocks of queries;
        of a cache it is one that reads caches.
        """
        family, heads = self.spec.of_family, self.grouping
        query_BxNxTxF = self._scored("query", x, self.heads, positions and positions.queries)
        read = heads.grouped(query_BxNxTxF), memory.key[:, :, None], memory.value[:, :, None]
        attention = self._asked(mask, positions, edit)._replace(dropout=dropout)
        attention = self._with_family(attention, query_BxNxTxF, memory, is_cached)
        told: Any
        if summary is not None:
            attend = family.attending(pooled, self.family_params, depth)
            values, told = pooled_with_statistics(*read, attention, summary.with_axes(2), attend)
        else:
            has_weights = with_heads or edit.weights is not None
            by = functools.partial(backends.attended, self._backend(has_weights, is_cached))
            attend = family.attending(by, self.family_params, depth)
            values, told = attend(*read, attention._replace(with_weights=with_heads))
        outputs_BxNxTxF = edited(family.outputs(self.family_params, x, heads.joined(values), depth), edit)
        outputs_BxTxNxF = jnp.moveaxis(outputs_BxNxTxF, -3, -2)
        joined_BxTxD = outputs_BxTxNxF.reshape(*outputs_BxTxNxF.shape[:-2], self.width)
        shown = jax.tree.map(heads.joined, told)
        return joined_BxTxD @ self.out.astype(self.dtype), Heads(shown, outputs_BxNxTxF) if with_heads else shown

    @property
    def grouping(self) -> Grouping:
        return Grouping(self.heads, self.kv_heads)

    def _backend(self, has_weights: bool, is_cached: bool) -> str:
        if has_weights or (is_cached and self.spec.of_family.log_forgets):
            return "reference"
        return backends.of_caches(self.spec.backend) if is_cached else self.spec.backend

    def _asked(self, mask: Mask | None, positions: QueryKeyPositions | None, edit: Edit) -> Attention:
        """What is asked of attention, beside queries, keys and values, whatever the family."""
        return Attention(
            score=make_score(self.spec.score),
            score_params=self._own_score,
            normalizer=make_normalizer(self.spec.normalize),
            normalizer_params=tuple(self.grouping.by_group(sink) for sink in self.sinks),
            mask=None if mask is None else with_axes(mask, 2),
            relative=self.grouping.relative(self._relative(positions)),
            replacement=self._replacement(edit),
        )

    @property
    def _own_score(self) -> tuple[Array, ...]:
        return tuple(array.astype(self.dtype) for array in self.score_params)

    def _with_family(self, attention: Attention, query: Array, memory: KeyValue, is_cached: bool) -> Attention:
        """What the family asks for too. Of a cache, in which texts may stand side by side, decay is made row by row."""
        family, heads = self.spec.of_family, self.grouping
        if family.maps.do_something:
            return attention._replace(maps=heads.maps(family.maps)._replace(params=self.family_params))
        if family.selections is not None:
            taken = selected_before(self._selections(query, memory, attention.mask), memory.taken)
            return attention._replace(bias=-taken[:, None, None])
        if memory.log_forgets is None:
            return attention
        of_keys = heads.grouped(memory.log_forgets[..., 0])
        if not is_cached:
            return attention._replace(relative=with_decay(attention.relative, of_keys))
        pairs = jnp.zeros((len(query), 1, 1, query.shape[-2], of_keys.shape[-1]))
        return attention._replace(bias=decay_of_rows(of_keys, with_mask(pairs, attention.mask)[1]))

    def _selections(self, query: Array, memory: KeyValue, mask: Mask | None) -> Float[Array, "batch t s"]:
        """What the queries' first head gives every key; the mask has axes for heads in groups."""
        scores = make_score(self.spec.score).apply(query[:, :1, None], memory.key[:, :1, None], *self._own_score)
        return self.spec.of_family.selections(*with_mask(scores, mask))[:, 0, 0]  # type: ignore[misc]

    def _relative(self, positions: QueryKeyPositions | None) -> Relative:
        """What the encoding adds to scores and values."""
        if self.encoding is None or positions is None:
            return Relative()
        record, values = self.encoding.record, self.encoding.values
        return Relative(record.bias, None, record.mix, values, *positions, record.pairs)

    def _replacement(self, edit: Edit) -> Replacement | None:
        if edit.weights is None or edit.replaced is None:
            return None
        return Replacement(self.grouping.by_group(edit.replaced), self.grouping.grouped(edit.weights))

    def _scored(self, name: str, x: Array, heads: int, positions: Array | None) -> Float[Array, "batch h t f"]:
        """Queries or keys: projected, each part of a head normalised and turned by itself."""
        parts = self.spec.of_family.parts
        x_BxPxTxF = self._split(x @ self.matrices[name].astype(self.dtype), heads * parts)
        if self.qk_norm:
            x_BxPxTxF = rms_norm(x_BxPxTxF, self.gains[name])
        x_BxPxTxF = self._rotated(x_BxPxTxF, positions)
        if parts == 1:
            return x_BxPxTxF
        return jnp.concatenate([x_BxPxTxF[:, part::parts] for part in range(parts)], axis=-1)

    def _rotated(self, x: Array, positions: Array | None) -> Array:
        return x if self.encoding is None or positions is None else self.encoding.rotate(x, positions)

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
