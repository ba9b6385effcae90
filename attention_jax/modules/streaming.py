"""Multi-head attention to a stream: to its first tokens, the sinks, and to its last, of which alone a cache is kept."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from attention_jax.modules.attention import KeyValue, MultiHeadAttention
from attention_jax.modules.positions import QueryKeyPositions
from attention_jax.ops.cache import Held
from attention_jax.ops.masking import Mask
from attention_jax.ops.patterns import Stream


class StreamingAttention(MultiHeadAttention):
    """Multi-head attention whose cache has room for what its `stream` keeps, however long a text grows."""

    stream: Stream = Stream()

    def init_cache(self, batch: int, room: int) -> Held:
        """What is held of texts before their first token, of any room: no more keys and values than the stream's."""
        del room
        return Held(state=super().init_cache(batch, self.stream.room).history)

    def recall(
        self,
        x: Float[Array, "batch t d"],
        valid: Bool[Array, "batch t"],
        mask: Mask | None,
        positions: QueryKeyPositions,
        held: Held,
        first: Int[Array, " batch"],
    ) -> tuple[KeyValue, Held]:
        """What the tokens of `x` read: what was held, then themselves; and what is held after those that are valid."""
        del mask
        new = self.project(x, positions.queries)
        read = jax.tree.map(lambda old, own: jnp.concatenate([old, own], axis=-2), held.state, new)
        return read, Held(state=self.stream.appended(held.state, new, first, jnp.sum(valid, axis=1)))
