"""What a layer is asked: which tokens its attention reads, with or without a cache, and what its heads show."""

from typing import Any, NamedTuple

from jaxtyping import Array, Bool, Float, Int

from attention_jax.modules.attention import UNCHANGED, Edit, Edits, Shown
from attention_jax.modules.positions import QueryKeyPositions
from attention_jax.ops.cache import Held
from attention_jax.ops.dropout import Dropout
from attention_jax.ops.masking import Mask
from attention_jax.ops.stacking import at_layer
from attention_jax.ops.statistics import Summary


class Look(NamedTuple):
    """What is asked of a layer's heads: a change of them, and whether to return their weights and outputs.

    With `is_cached`, what they read is a cache. With a `summary`, they return statistics of their weights instead.
    `depth` is the layer's number, from 0 on.
    """

    edit: Edit = UNCHANGED
    with_heads: bool = False
    is_cached: bool = False
    summary: Summary | None = None
    depth: Array | int = 0


PLAIN = Look()


def look_at(edits: Edits, kind: str, layer: int) -> Look:
    """What is asked of one layer's heads that read a cache; the arrays of `edits` have layers as their first axis."""
    return Look(at_layer(edits.get(kind, UNCHANGED), layer), is_cached=True, depth=layer)


class Reading(NamedTuple):
    """What a layer reads of its text: the mask and positions of attention, and with a cache what it `held` before.

    The tokens then come from each text's place `first` in history on, and the mask and positions are those of all that
    history has room for.
    """

    mask: Mask | None
    positions: QueryKeyPositions
    held: Held | None = None
    first: Int[Array, " batch"] | None = None

    @property
    def before(self) -> Int[Array, " batch"] | int:
        """How many tokens stand in history before those that are read now."""
        return 0 if self.first is None else self.first

    def by(
        self,
        attention: Any,
        x: Float[Array, "batch t d"],
        valid: Bool[Array, "batch t"],
        dropout: Dropout | None,
        look: Look,
    ) -> tuple[Float[Array, "batch t d"], tuple[Held | None, Shown]]:
        """What each token of `x` reads; what is held now, if there is a cache, and what each head did."""
        if self.held is None or self.first is None:
            held, read = None, attention.project(x, self.positions.queries)
        else:
            read, held = attention.recall(x, valid, self.mask, self.positions, self.held, self.first)
        out, heads = attention(x, read, self.mask, dropout, self.positions, *look)
        return out, (held, heads)
