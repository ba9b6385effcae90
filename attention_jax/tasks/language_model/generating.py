"""Writing text: a prompt is read in one pass, then token by token into a cache that grows with what it holds."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key

from attention_jax.data.tokenizers import BOS, EOS, PAD, UNK
from attention_jax.decoding.greedy import Choose, Writing, likeliest, write
from attention_jax.decoding.sampling import drawing
from attention_jax.errors import UserError
from attention_jax.models.language_model import LanguageModel
from attention_jax.modules.attention import NO_EDITS, Edits
from attention_jax.ops.cache import grown
from attention_jax.ops.positions import require_room
from attention_jax.tasks.language_model.model import draw_positions
from attention_jax.training.state import Variables

BLOCK = 16  # tokens that are written in one call
LEAST_ROOM = 64  # of a cache; it doubles


class Drawing(NamedTuple):
    """How the next token is chosen: of the likeliest, at a temperature; the likeliest itself at temperature 0."""

    temperature: float
    top_k: int  # 0: of all
    top_p: float


class Order(NamedTuple):
    """What is to be written: how many tokens after a prompt, whether a text may end before, how much is read, by what.

    `edits` are gates of heads.
    """

    tokens: int
    has_ends: bool
    context: int  # tokens that are read at most; 0: all
    drawing: Drawing
    edits: Edits = NO_EDITS


class Generator:
    """A model's programs for writing; one is compiled for each room of the cache and length of what is read at once."""

    def __init__(self, model: LanguageModel):
        self._model = model
        self._read: Any = jax.jit(self._read_prompt)
        self._write: Any = jax.jit(self._write_block, static_argnames=("how", "has_ends"), donate_argnums=1)

    def compiled(self) -> int:
        """How many programs there are by now."""
        return self._read._cache_size() + self._write._cache_size()

    def blocks(
        self, variables: Variables, prompt: Sequence[int], keys: Key[Array, " batch"], order: Order
    ) -> Iterator[Int[np.ndarray, "batch n"]]:
        """What follows a prompt, a text a key, some tokens at a time; after a text's end there is padding.

        Where `order.context` tokens have been read, the later half of them is read again and the rest forgotten. Raises
        UserError where the model has no room, ValueError where it does not read token by token.
        """
        positions = self._positions(len(prompt), order)
        written = np.tile(np.array(prompt, np.int32), (len(keys), 1))
        writing, left = self._start(variables, written, positions, 0, order), order.tokens
        while left and not np.all(writing.is_done):
            read = int(writing.cache.cursor[0])
            if order.context and read >= order.context:
                kept = written[:, -max(order.context // 2, 1) :]
                restarted = self._start(variables, kept, positions, order.tokens - left, order)
                writing, read = restarted._replace(is_done=writing.is_done), kept.shape[1] - 1
            count = min(BLOCK, left, order.context - read if order.context else left)
            room = _room(read + count, len(positions))
            if room > writing.cache.memory.shape[-1]:
                writing = writing._replace(cache=grown(writing.cache, self._memory(positions, room, len(keys))))
            asked = (variables, writing, keys, count, dict(order.edits))
            found, writing = self._write(*asked, how=order.drawing, has_ends=order.has_ends)
            block = np.asarray(found)[:, :count]
            yield block
            written, left = np.concatenate([written, block], axis=1)[:, -max(order.context, 1) :], left - count

    def _start(self, variables, tokens: np.ndarray, positions: np.ndarray, chosen: int, order: Order) -> Writing:
        """The texts once all but the last of their tokens are read."""
        if order.context and tokens.shape[1] > order.context:
            tokens = tokens[:, -order.context :]
        read, last = tokens[:, :-1], jnp.asarray(tokens[:, -1])
        width = min(_room(max(read.shape[1], 1), len(positions)), len(positions))
        memory = self._memory(positions, _room(width, len(positions)), len(tokens))
        padded = np.pad(read, ((0, 0), (0, width - read.shape[1])))
        counts = np.full(len(tokens), read.shape[1], np.int32)
        cache = self._read(variables, padded, counts, memory, dict(order.edits))
        return Writing(last, cache, jnp.zeros(len(tokens), bool), jnp.int32(chosen))

    def _positions(self, prompt: int, order: Order) -> np.ndarray:
        """Where the tokens that are read at once will stand."""
        model, total = self._model, prompt + order.tokens
        places = min(total, order.context) if order.context else total
        encoding = model.new_encoding()
        try:
            require_room(model.positions, encoding.record, encoding.sizes, places)
        except ValueError as error:
            raise UserError(
                f"config.generate: context={order.context or 'all'} of a prompt of {prompt} tokens and "
                f"tokens={order.tokens}: {error} Set --config.generate.context to what it places, or ask for fewer."
            ) from None
        drawn = draw_positions(model, jax.random.key(0), 1, places)
        return np.arange(places, dtype=np.int32) if drawn is None else np.asarray(drawn[0])

    def _memory(self, positions: np.ndarray, room: int, batch: int) -> Int[Array, "batch room"]:
        return jnp.asarray(np.tile(positions[:room], (batch, 1)))

    def _read_prompt(self, variables, tokens, counts, memory, edits):
        cache: Any = self._model.apply(variables, memory, method="init_cache")
        read: Any = self._model.apply(variables, tokens, jnp.maximum(counts, 1), cache, edits, method="extend")[1]
        return read._replace(cursor=counts)

    def _write_block(self, variables, writing: Writing, keys, count, edits, how: Drawing, has_ends: bool):
        step = functools.partial(self._model.apply, variables, edits=edits, method="step")
        never = (PAD, BOS, UNK) if has_ends else (PAD, BOS, UNK, EOS)
        choose = _choose(keys, how)
        return write(step, writing, BLOCK, choose, eos=EOS, pad=PAD, never=never, at_most=count)


def _choose(keys: Key[Array, " batch"], how: Drawing) -> Choose:
    return drawing(keys, *how) if how.temperature else likeliest


def _room(needed: int, most: int) -> int:
    """A power of two that holds what is needed, so that few programs are compiled; never more than there will be."""
    return min(max(LEAST_ROOM, 1 << (needed - 1).bit_length()), most)
