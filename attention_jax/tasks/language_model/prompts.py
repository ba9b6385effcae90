"""Prompts and what follows them, as text: what `config.generate` asks for, told as it comes."""

import functools
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import jax
import numpy as np
from jaxtyping import Array, Key
from ml_collections import ConfigDict

from attention_jax.data.text import Text
from attention_jax.data.text_tokenizers import TextTokenizer, encode
from attention_jax.data.tokenizers import EOS, PAD, UNK
from attention_jax.errors import UserError
from attention_jax.modules.attention import NO_EDITS, Edits
from attention_jax.modules.mixers import ATTENTION
from attention_jax.tasks.choosing import require_drawing
from attention_jax.tasks.language_model.generating import Drawing, Generator, Order
from attention_jax.tasks.language_model.session import Session
from attention_jax.training.state import Variables

PROMPTS: dict[str, Callable[[str], list[str]]] = {"whole": lambda text: [text], "lines": lambda text: text.splitlines()}
RULE = "-" * 40  # between texts
LINE = "\n"
CUT = "\ufffd"  # what a character is decoded to whose last bytes are still to come
KEPT, SHOWN_TOKENS = 3, 400  # texts that a run writes for its page


def require_usable(asked: ConfigDict) -> None:
    """Raise UserError for values of `config.generate` that cannot be used."""
    require_drawing(asked, "generate")
    for name, least in (("tokens", 1), ("samples", 1), ("context", 0), ("seed", 0)):
        if asked[name] < least:
            raise UserError(f"config.generate.{name}={asked[name]}: needs {least} or more.")
    if asked.prompts not in PROMPTS:
        raise UserError(f"config.generate.prompts={asked.prompts!r}: choose one of {', '.join(PROMPTS)}.")


def require_writing(config: ConfigDict) -> None:
    """Raise UserError, before anything is read, where a model does not write, or not as `config.generate` asks."""
    if config.model.mixer != ATTENTION:
        raise UserError(
            f"config.model.mixer={config.model.mixer!r}: does not write; only {ATTENTION!r} reads token by token."
        )
    require_usable(config.generate)


def generate(
    session: Session, config: ConfigDict, variables: Variables, text: str, edits: Edits = NO_EDITS
) -> Iterator[str]:
    """Each prompt of a text with what follows it, in pieces as they come, and at the end how fast on stderr.

    Several texts are each written when whole, with a line between them. Raises UserError where a prompt has a character
    that the model does not know; ValueError for edits that are no gates.
    """
    source, pace = session.source, _Pace(session.generator)
    assert source.text is not None
    prompts = PROMPTS[config.generate.prompts](text) or [""]
    started = [_ids(source.text, prompt) for prompt in prompts]
    order = order_of(config.generate, source.text)._replace(edits=edits)
    is_alone, between = len(prompts) * config.generate.samples == 1, ""
    for place, (prompt, ids) in enumerate(zip(prompts, started, strict=True)):
        keys = _keys(config.generate, place)
        blocks = pace.timed(session.generator.blocks(variables, ids, keys, order))
        if is_alone:
            yield from _ended(_pieces(prompt, blocks, source.text.tokenizer))
        else:
            for one in _whole(prompt, blocks, source.text):
                yield between
                yield from _ended(iter([one]))
                between = RULE + LINE
    print(pace, file=sys.stderr)


def write_samples(session: Session, config: ConfigDict, variables: Variables, folder: Path) -> None:
    """samples.jsonl: a few texts that a trained model writes without a prompt, as `config.generate` says.

    None where it does not read token by token. What is read is never longer than in training.
    """
    text, asked = session.source.text, config.generate
    assert text is not None
    if session.measured.layer.mixer != ATTENTION:
        return
    context = asked.context or session.source.trained
    order = order_of(asked, text)._replace(tokens=min(asked.tokens, SHOWN_TOKENS), context=context)
    keys = _keys(asked, 0, max(asked.samples, KEPT))
    samples = _whole("", session.generator.blocks(variables, _ids(text, ""), keys, order), text)
    lines = [json.dumps({"text": sample}, ensure_ascii=False) + LINE for sample in samples]
    (folder / "samples.jsonl").write_text("".join(lines), encoding="utf-8")


def read_samples(folder: Path) -> list[str]:
    """The texts that `write_samples` wrote; none where it did not."""
    path = folder / "samples.jsonl"
    if not path.exists():
        return []
    return [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").split(LINE) if line]


def order_of(asked: ConfigDict, text: Text) -> Order:
    """What `config.generate` asks for; a text ends where those that were trained on do."""
    how = Drawing(float(asked.temperature), asked.top_k, float(asked.top_p))
    return Order(asked.tokens, text.has_ends, asked.context, how)


def _ids(text: Text, prompt: str) -> list[int]:
    """A prompt's tokens after what comes before a text: a document's end, or in one running text nothing.

    There an empty prompt is a line's end, where the tokenizer knows one.
    """
    ids = encode(text.tokenizer, prompt).tolist()
    if UNK in ids:
        unknown = [c for c in dict.fromkeys(prompt) if UNK in encode(text.tokenizer, c)]
        shown = ", ".join(map(repr, unknown[:5]))
        raise UserError(f"the prompt has characters that the training text has not: {shown}. Leave them out.")
    if text.has_ends:
        return [EOS, *ids]
    line = [int(one) for one in encode(text.tokenizer, LINE) if one != UNK]
    return ids or line or [EOS]


def _keys(asked: ConfigDict, prompt: int, samples: int = 0) -> Key[Array, " samples"]:
    """A key a text, which depends on its prompt's place and its own, and not on how many there are."""
    key = jax.random.fold_in(jax.random.key(asked.seed), prompt)
    return jax.vmap(functools.partial(jax.random.fold_in, key))(np.arange(samples or asked.samples))


def _pieces(prompt: str, blocks: Iterator[np.ndarray], tokenizer: TextTokenizer) -> Iterator[str]:
    """A prompt and the text of one row after it; a character that is cut in two waits for its other bytes."""
    yield prompt
    held: list[int] = []
    for block in blocks:
        held += _words(block[0])
        text = tokenizer.decode(held)
        if not text.endswith(CUT):
            yield text
            held = []
    yield tokenizer.decode(held)


def _whole(prompt: str, blocks: Iterator[np.ndarray], text: Text) -> list[str]:
    """A prompt with what follows it, a text a row."""
    rows = np.concatenate(list(blocks), axis=1)
    return [prompt + text.tokenizer.decode(_words(row)) for row in rows]


def _words(row: Sequence[int] | np.ndarray) -> list[int]:
    return [int(one) for one in row if one not in (PAD, EOS)]


def _ended(pieces: Iterator[str]) -> Iterator[str]:
    """The same with a line's end at the end."""
    last = ""
    for piece in pieces:
        last = piece or last
        yield piece
    if not last.endswith(LINE):
        yield LINE


class _Pace:
    """Counts tokens, the seconds that they took, and those of calls that compiled apart."""

    def __init__(self, generator: Generator):
        self._generator, self._tokens = generator, 0
        self._timed = self._seconds = self._compiling = 0.0

    def timed(self, blocks: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
        """The same blocks."""
        before, compiled = time.perf_counter(), self._generator.compiled()
        for block in blocks:
            seconds, count = time.perf_counter() - before, int(np.count_nonzero(block != PAD))
            self._tokens += count
            if self._generator.compiled() > compiled:
                self._compiling += seconds
            else:
                self._timed, self._seconds = self._timed + count, self._seconds + seconds
            yield block
            before, compiled = time.perf_counter(), self._generator.compiled()

    def __str__(self) -> str:
        count, seconds = (self._timed, self._seconds) if self._timed else (self._tokens, self._compiling)
        told = f"{self._tokens:,} tokens, {count / max(seconds, 1e-9):,.0f} a second"
        return f"{told}; programs were compiled in {self._compiling:.1f} s" if self._compiling else told
