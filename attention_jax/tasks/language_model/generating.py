"""Generation: a prompt is read in one pass, then tokens are written one by one, with a cache that grows."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, Key

from attention_jax import stopping
from attention_jax.data.tokenizers import BOS, EOS, PAD, UNK
from attention_jax.decoding import sampling
from attention_jax.decoding.choosing import likeliest
from attention_jax.decoding.greedy import Choose, Writing, write
from attention_jax.errors import UserError
from attention_jax.models.language_model import LanguageModel
from attention_jax.modules.attention import NO_EDITS, Edits
from attention_jax.ops.cache import grown
from attention_jax.tasks.language_model.model import draw_positions
from attention_jax.training.state import Variables

BLOCK = 16  # how many tokens are written in one call
LEAST_ROOM = 64  # tokens that the first cache has room for; the room doubles


class Drawing(NamedTuple):
    """How the next token is drawn, as in `decoding.sampling.sample`; at temperature 0 it is the likeliest."""

    temperature: float
    top_k: int  # 0: all
    top_p: float


class Request(NamedTuple):
    """What is to be written after a prompt: at most `tokens` tokens, fewer if `has_ends` and the text ends.

    `edits` are gates of heads.
    """

    tokens: int
    has_ends: bool
    context: int  # the most tokens that are read; 0: all
    drawing: Drawing
    edits: Edits = NO_EDITS


class Generator:
    """A model's programs for generation, one for each room of the cache and each length that is read at once."""

    def __init__(self, model: LanguageModel):
        self._model = model
        self._read: Any = jax.jit(self._read_prompt)
        self._write: Any = jax.jit(self._write_block, static_argnames=("drawing", "has_ends"), donate_argnums=1)

    def compiled(self) -> int:
        """How many programs have been compiled."""
        return self._read._cache_size() + self._write._cache_size()

    def blocks(
        self, variables: Variables, prompt: Sequence[int], keys: Key[Array, " batch"], request: Request
    ) -> Iterator[Int[np.ndarray, "batch n"]]:
        """The tokens after a prompt, a text for each key, in blocks; after a text's end there is padding.

        When `request.context` tokens have been read, only their later half is read again, and the rest is forgotten.
        Raises UserError if the model has no room for the text, ValueError if it cannot read token by token, and
        Interrupted where a stop is asked for.
        """
        positions = self._positions(len(prompt), request)
        written = np.tile(np.array(prompt, np.int32), (len(keys), 1))
        writing, left = self._start(variables, written, positions, 0, request), request.tokens
        while left and not np.all(writing.is_done):
            stopping.poll()
            read = int(writing.cache.cursor[0])
            if request.context and read >= request.context:
                kept = written[:, -max(request.context // 2, 1) :]
                restarted = self._start(variables, kept, positions, request.tokens - left, request)
                writing, read = restarted._replace(is_done=writing.is_done), kept.shape[1] - 1
            count = min(BLOCK, left, request.context - read if request.context else left)
            room = _room(read + count, len(positions))
            if room > writing.cache.memory.shape[-1]:
                empty = self._empty(variables, self._memory(positions, room, len(keys)))
                writing = writing._replace(cache=grown(writing.cache, empty))
            arguments = (variables, writing, keys, count, dict(request.edits))
            outputs, writing = self._write(*arguments, drawing=request.drawing, has_ends=request.has_ends)
            block = np.asarray(outputs)[:, :count]
            yield block
            written, left = np.concatenate([written, block], axis=1)[:, -max(request.context, 1) :], left - count

    def _start(self, variables, tokens: np.ndarray, positions: np.ndarray, chosen: int, request: Request) -> Writing:
        """The texts after all but the last of their tokens have been read."""
        if request.context and tokens.shape[1] > request.context:
            tokens = tokens[:, -request.context :]
        read, last = tokens[:, :-1], jnp.asarray(tokens[:, -1])
        width = min(_room(max(read.shape[1], 1), len(positions)), len(positions))
        memory = self._memory(positions, _room(width, len(positions)), len(tokens))
        padded = np.pad(read, ((0, 0), (0, width - read.shape[1])))
        counts = np.full(len(tokens), read.shape[1], np.int32)
        cache = self._read(variables, padded, counts, memory, dict(request.edits))
        return Writing(last, cache, jnp.zeros(len(tokens), bool), jnp.int32(chosen))

    def _positions(self, prompt: int, request: Request) -> np.ndarray:
        """The positions of the tokens that are read at once."""
        model, total = self._model, prompt + request.tokens
        longest = min(total, request.context) if request.context else total
        try:
            model.require_room(longest)
        except ValueError as error:
            raise UserError(
                f"config.generate.context={request.context}: the model's {error} Set it to as many, or lower "
                f"config.generate.tokens={request.tokens}."
            ) from None
        drawn = draw_positions(model, jnp.zeros((1, longest), jnp.int32), keys=jax.random.key(0)[None])
        return np.arange(longest, dtype=np.int32) if drawn is None else np.asarray(drawn[0])

    def _memory(self, positions: np.ndarray, room: int, batch: int) -> Int[Array, "batch room"]:
        return jnp.asarray(np.tile(positions[:room], (batch, 1)))

    def _empty(self, variables, memory) -> Any:
        return self._model.apply(variables, memory, method="init_cache")

    def _read_prompt(self, variables, tokens, counts, memory, edits):
        cache = self._empty(variables, memory)
        return self._model.apply(variables, tokens, counts, cache, edits, method="extend")[1]

    def _write_block(self, variables, writing: Writing, keys, count, edits, drawing: Drawing, has_ends: bool):
        step = functools.partial(self._model.apply, variables, edits=edits, method="step")
        never = (PAD, BOS, UNK) if has_ends else (PAD, BOS, UNK, EOS)
        choose = _choose(keys, drawing)
        return write(step, writing, BLOCK, choose, eos=EOS, pad=PAD, never=never, at_most=count)


def _choose(keys: Key[Array, " batch"], drawing: Drawing) -> Choose:
    return sampling.drawing(keys, *drawing) if drawing.temperature else likeliest


def _room(needed: int, most: int) -> int:
    """The least power of two that holds what is needed, at most `most`: few programs are compiled."""
    return min(max(LEAST_ROOM, 1 << (needed - 1).bit_length()), most)
