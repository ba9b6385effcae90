"""Multi-head attention: parameters and the head axis; what is computed between them is a backend's."""

import types
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from attention_jax import backends
from attention_jax.modules.positions import Places, PositionEncoding
from attention_jax.ops.attention import Attention, Relative, Replacement, require_fitting
from attention_jax.ops.dropout import Dropout
from attention_jax.ops.encoding import Encoding
from attention_jax.ops.masking import Mask, with_axes
from attention_jax.ops.normalization import rms_norm
from attention_jax.ops.normalizing import make_normalizer
from attention_jax.ops.scoring import make_score


class AttentionSpec(NamedTuple):
    """What attention computes and by what, in the words of a config: "gaussian:width=2", "sigmoid", "chunked"."""

    score: str = "scaled_dot"
    normalize: str = "softmax"
    backend: str = "reference"

    def attention(self, encoding: Encoding | None = None) -> Attention:
        """The record of it, without arrays. Raises ValueError for names that are not known, or do not go together."""
        relative = Relative(encoding.bias, None, encoding.mix) if encoding else Relative()
        found = Attention(make_score(self.score), (), make_normalizer(self.normalize), relative=relative)
        require_fitting(found, self.score, self.normalize)
        return found

    def check(self, encoding: Encoding | None = None) -> None:
        """Raise ValueError for what is not known, does not go together, or is more than the backend can do."""
        backends.require(self.backend, self.attention(encoding))


def with_backend(flat: Mapping[str, Any], length: int) -> dict[str, Any]:
    """A model's fields with the backend that computes its attention to up to `length` tokens, where that is "auto".

    Raises ValueError where the one that is named cannot.
    """
    own = AttentionSpec(flat["score"], flat["normalize"])
    cross = AttentionSpec(flat.get("cross_score") or own.score, flat.get("cross_normalize") or own.normalize)
    asked = [spec.attention() for spec in {own, cross}]
    return {**flat, "backend": backends.choose(flat["backend"], asked, length)}


class KeyValue(NamedTuple):
    """Keys and values, already projected and split into heads: `[batch, heads, tokens, features]`."""

    key: Float[Array, "batch h s f"]
    value: Float[Array, "batch h s f"]


class Heads(NamedTuple):
    """What each head does: its weights, before dropout, and its output, before the heads are joined."""

    weights: Float[Array, "batch h q k"]
    outputs: Float[Array, "batch h q f"]


def stack_layers(found: Sequence[Heads]) -> Heads:
    """The heads of every layer, `[batch, layers, heads, …]`."""
    return jax.tree.map(lambda *layers: jnp.stack(layers, axis=1), *found)


class Edit(NamedTuple):
    """What is changed of heads, each part None where it changes nothing; arrays, so that a `vmap` may go over them.

    `gate` multiplies a head's output: 0 removes it. Heads that are `replaced` have these `weights`, or `outputs`.
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

    `kv_heads` heads of keys and values serve `heads` heads of queries: fewer make it grouped-query attention
    (Ainslie et al. 2023), one multi-query (Shazeer 2019). `qk_norm` takes the RMS norm of every query and key
    (Dehghani et al. 2023, §2.1). `encoding` turns queries and keys, and adds to scores and values. The heads of a layer
    share the parameters of a score, which they see through projections of their own; a learned sink is each head's.
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
        """Keys and values of a memory, once for all that will ask it; `positions` where there is an encoding."""
        key = self._split(memory @ self.matrices["key"].astype(self.dtype), self.kv_heads)
        value = self._split(memory @ self.matrices["value"].astype(self.dtype), self.kv_heads)
        return KeyValue(self._placed(rms_norm(key, self.gains["key"]) if self.qk_norm else key, positions), value)

    def __call__(
        self,
        x: Float[Array, "batch t d"],
        memory: KeyValue,
        mask: Mask | None,
        dropout: Dropout | None = None,
        places: Places | None = None,
        edit: Edit = UNCHANGED,
        with_heads: bool = False,
    ) -> tuple[Float[Array, "batch t d"], Heads | None]:
        """What each of `x` reads from the memory, and what each head did, where that is asked for.

        `mask` is without heads: `[..., T, S]`. Weights are the `reference` backend's, whichever one trains.
        """
        query_BxNxTxF = self._split(x @ self.matrices["query"].astype(self.dtype), self.heads)
        if self.qk_norm:
            query_BxNxTxF = rms_norm(query_BxNxTxF, self.gains["query"])
        found = backends.attend(
            "reference" if with_heads else self.spec.backend,
            self._grouped(self._placed(query_BxNxTxF, places and places.queries)),
            memory.key[:, :, None],
            memory.value[:, :, None],
            score=self.spec.score,
            score_params=tuple(array.astype(self.dtype) for array in self.score_params),
            normalize=self.spec.normalize,
            normalizer_params=tuple(self._by_group(sink) for sink in self.sinks),
            mask=None if mask is None else with_axes(mask, 2),
            relative=self._relative(places),
            dropout=dropout,
            replacement=self._replacement(edit),
            with_weights=with_heads,
        )
        outputs_BxNxTxF = edited(self._joined(found.values), edit)
        outputs_BxTxNxF = jnp.moveaxis(outputs_BxNxTxF, -3, -2)
        joined_BxTxD = outputs_BxTxNxF.reshape(*outputs_BxTxNxF.shape[:-2], self.width)
        heads = Heads(self._joined(found.weights), outputs_BxNxTxF) if with_heads else None
        return joined_BxTxD @ self.out.astype(self.dtype), heads

    def _relative(self, places: Places | None) -> Relative:
        """What the encoding does to scores and values, of heads by the keys that they share."""
        if self.encoding is None or places is None:
            return Relative()
        record, values = self.encoding.record, self.encoding.values
        bias, mix = record.bias, record.mix
        return Relative(
            bias and (lambda params, query, *both: self._grouped(bias(params, self._joined(query), *both))),
            None,
            mix and (lambda params, weights, *both: self._grouped(mix(params, self._joined(weights), *both))),
            values,
            *places,
        )

    def _replacement(self, edit: Edit) -> Replacement | None:
        if edit.weights is None or edit.replaced is None:
            return None
        return Replacement(self._by_group(edit.replaced), self._grouped(edit.weights))

    def _by_group(self, of_heads: Array) -> Array:
        """[heads] → [kv_heads, groups, 1, 1]."""
        return of_heads.reshape(self.kv_heads, self.heads // self.kv_heads, 1, 1)

    def _placed(self, x: Array, positions: Array | None) -> Array:
        return x if self.encoding is None or positions is None else self.encoding.rotate(x, positions)

    def _grouped(self, x_BxNxTxF: Array) -> Array:
        """Heads by the keys and values that they share: `[batch, kv_heads, groups, …]`."""
        batch, _, *rest = x_BxNxTxF.shape
        return x_BxNxTxF.reshape(batch, self.kv_heads, self.heads // self.kv_heads, *rest)

    def _joined(self, x_BxKxGxTxS: Any) -> Array:
        return x_BxKxGxTxS.reshape(len(x_BxKxGxTxS), self.heads, *x_BxKxGxTxS.shape[-2:])

    def _split(self, x_BxTxD: Array, heads: int) -> Array:
        x_BxTxNxF = x_BxTxD.reshape(*x_BxTxD.shape[:-1], heads, -1)
        return jnp.moveaxis(x_BxTxNxF, -2, -3)


def edited(outputs_BxNxTxF: Array, edit: Edit) -> Array:
    """Heads' outputs `[batch, heads, Q, F]`, replaced and gated."""
    if edit.outputs is not None and edit.replaced is not None:
        outputs_BxNxTxF = jnp.where(edit.replaced[None, :, None, None], edit.outputs, outputs_BxNxTxF)
    if edit.gate is not None:
        outputs_BxNxTxF *= edit.gate.astype(outputs_BxNxTxF.dtype)[None, :, None, None]
    return outputs_BxNxTxF
