"""Heads of queries in groups that share a head of keys and values; functions of heads as functions of groups."""

from typing import Any, NamedTuple

from jaxtyping import Array, Float

from attention_jax.ops.attention import Maps, Relative
from attention_jax.ops.encoding import PairBias


class Grouping(NamedTuple):
    """`heads` heads of queries share `kv_heads` heads of keys and values (Ainslie et al. 2023, §2.2).

    Heads `[batch, heads, …]` are grouped as `[batch, kv_heads, groups, …]`.
    """

    heads: int
    kv_heads: int

    def grouped(self, x: Float[Array, "batch h ..."]) -> Float[Array, "batch k g ..."]:
        return x.reshape(len(x), self.kv_heads, self.heads // self.kv_heads, *x.shape[2:])

    def joined(self, x: Float[Array, "batch k g ..."]) -> Float[Array, "batch h ..."]:
        return x.reshape(len(x), self.heads, *x.shape[3:])

    def by_group(self, of_heads: Array) -> Array:
        """[heads] → [kv_heads, groups, 1, 1]."""
        return of_heads.reshape(self.kv_heads, self.heads // self.kv_heads, 1, 1)

    def relative(self, relative: Relative) -> Relative:
        """The functions of a `Relative` of heads, for heads in groups."""
        bias, mix, pairs = relative.bias, relative.mix, relative.pairs
        return relative._replace(
            bias=bias and (lambda params, query, *both: self.grouped(bias(params, self.joined(query), *both))),
            mix=mix and (lambda params, weights, *both: self.grouped(mix(params, self.joined(weights), *both))),
            pairs=pairs and (lambda params, heads: self._pairs_by_group(pairs(params, self.heads))),
        )

    def maps(self, maps: Maps) -> Maps:
        """The functions of `Maps` of heads, for heads in groups."""
        scores, weights = maps.scores, maps.weights

        def of_scores(params: Any, found: Array, query: Array, allowed: Array) -> Array:
            return self.grouped(scores(params, self.joined(found), self.joined(query), allowed[:, :, 0]))  # type: ignore[misc]

        return maps._replace(
            scores=scores and of_scores,
            weights=weights and (lambda params, found: self.grouped(weights(params, self.joined(found)))),
        )

    def _pairs_by_group(self, pairs: PairBias) -> PairBias:
        return pairs._replace(numbers=pairs.numbers.reshape(self.kv_heads, self.heads // self.kv_heads, -1))
