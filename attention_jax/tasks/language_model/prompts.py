"""Generation of text: prompts, and the texts that follow them, as `config.generate` says."""

import functools
import json
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
from attention_jax.files import read_json
from attention_jax.modules.attention import NO_EDITS, Edits
from attention_jax.tasks.choosing import require_drawing
from attention_jax.tasks.language_model.generating import Drawing, Generator, Request
from attention_jax.tasks.language_model.session import Session
from attention_jax.training.progress import tell
from attention_jax.training.state import Variables

RULE = "-" * 40  # between texts
LINE = "\n"
PROMPTS: dict[str, Callable[[str], list[str]]] = {
    "whole": lambda text: [text],
    "lines": lambda text: text.removesuffix(LINE).split(LINE) if text else [],
}
CUT = "\ufffd"  # a character is decoded to this while its last bytes are missing
KEPT, SHOWN_TOKENS = 3, 400  # how many texts, of how many tokens, a run writes for its page


def require_usable(asked: ConfigDict) -> None:
    """Raise UserError for values of `config.generate` that cannot be used."""
    require_drawing(asked, "generate")
    for name, least in (("tokens", 1), ("samples", 1), ("context", 0), ("seed", 0)):
        if asked[name] < least:
            raise UserError(f"config.generate.{name}={asked[name]}: needs {least} or more.")
    if asked.prompts not in PROMPTS:
        raise UserError(f"config.generate.prompts={asked.prompts!r}: choose one of {', '.join(PROMPTS)}.")


def generate(
    session: Session, config: ConfigDict, variables: Variables, text: str, edits: Edits = NO_EDITS
) -> Iterator[str]:
    """Each prompt of a text with the text that follows it, in pieces as they are written; stderr gets the speed.

    If there are several texts, each comes when it is complete, with a line between them. Raises UserError for a prompt
    with a character that the model does not know, and ValueError for edits that are not gates.
    """
    source, pace = session.source, _Pace(session.generator)
    assert source.text is not None
    prompts = PROMPTS[config.generate.prompts](text) or [""]
    started = [_ids(source.text, prompt) for prompt in prompts]
    request = request_of(config.generate, source.text)._replace(edits=edits)
    is_alone, between = len(prompts) * config.generate.samples == 1, ""
    for index, (prompt, ids) in enumerate(zip(prompts, started, strict=True)):
        keys = _keys(config.generate, index)
        blocks = pace.timed(session.generator.blocks(variables, ids, keys, request))
        if is_alone:
            yield from _ended(_pieces(prompt, blocks, source.text.tokenizer))
        else:
            for whole in _whole(prompt, blocks, source.text):
                yield between
                yield from _ended(iter([whole]))
                between = RULE + LINE
    tell(str(pace))


def write_samples(session: Session, config: ConfigDict, variables: Variables, folder: Path) -> None:
    """Write samples.jsonl: a few texts that a trained model writes without a prompt, as `config.generate` says.

    The model never reads more tokens than in training.
    """
    text, asked = session.source.text, config.generate
    assert text is not None
    context = asked.context or session.source.trained
    request = request_of(asked, text)._replace(tokens=min(asked.tokens, SHOWN_TOKENS), context=context)
    keys = _keys(asked, 0, max(asked.samples, KEPT))
    samples = _whole("", session.generator.blocks(variables, _ids(text, ""), keys, request), text)
    lines = [json.dumps({"text": sample}, ensure_ascii=False) + LINE for sample in samples]
    (folder / "samples.jsonl").write_text("".join(lines), encoding="utf-8")


def read_samples(folder: Path) -> list[str]:
    """The texts that `write_samples` wrote; none if it wrote nothing. Raises UserError for a line that it did not."""
    path = folder / "samples.jsonl"
    if not path.exists():
        return []
    try:
        return ["".join(read_json(line)["text"]) for line in path.read_bytes().split(b"\n") if line]
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{path}: damaged: a line is not what the run wrote. Remove it.") from None


def request_of(asked: ConfigDict, text: Text) -> Request:
    """The request of `config.generate`; texts may end if the documents of training had ends."""
    drawing = Drawing(float(asked.temperature), asked.top_k, float(asked.top_p))
    return Request(asked.tokens, text.has_ends, asked.context, drawing)


def known(text: Text, written: str, what: str) -> list[int]:
    """The tokens of what is written. Raises UserError for a character that is not in the training text."""
    ids = encode(text.tokenizer, written).tolist()
    if UNK in ids:
        unknown = [c for c in dict.fromkeys(written) if UNK in encode(text.tokenizer, c)]
        shown = ", ".join(map(repr, unknown[:5]))
        raise UserError(f"{what} has characters that are not in the training text: {shown}. Leave them out.")
    return ids


def _ids(text: Text, prompt: str) -> list[int]:
    """A prompt's tokens, after the end of the document before, if the text of training has ends.

    Without ends, an empty prompt becomes a line's end, if the tokenizer knows one.
    """
    ids = known(text, prompt, "the prompt")
    if text.has_ends:
        return [EOS, *ids]
    line = [int(token) for token in encode(text.tokenizer, LINE) if token != UNK]
    return ids or line or [EOS]


def _keys(asked: ConfigDict, prompt: int, samples: int = 0) -> Key[Array, " samples"]:
    """A random key for each text, which depends on the prompt's index and the text's, not on how many there are."""
    key = jax.random.fold_in(jax.random.key(asked.seed), prompt)
    return jax.vmap(functools.partial(jax.random.fold_in, key))(np.arange(samples or asked.samples))


def _pieces(prompt: str, blocks: Iterator[np.ndarray], tokenizer: TextTokenizer) -> Iterator[str]:
    """A prompt, and the text of one row after it in pieces; a piece never ends inside a character."""
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
    """For each row, the prompt with the text that follows it."""
    rows = np.concatenate(list(blocks), axis=1)
    return [prompt + text.tokenizer.decode(_words(row)) for row in rows]


def _words(row: Sequence[int] | np.ndarray) -> list[int]:
    return [int(token) for token in row if token not in (PAD, EOS)]


def _ended(pieces: Iterator[str]) -> Iterator[str]:
    """The same pieces, with a line's end after the last if it has none."""
    last = ""
    for piece in pieces:
        last = piece or last
        yield piece
    if not last.endswith(LINE):
        yield LINE


class _Pace:
    """Counts tokens and seconds; calls that compiled a program are counted apart."""

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
        if not self._timed:
            return f"{self._tokens:,} tokens in {self._compiling:.1f} s, compilation included"
        told = f"{self._tokens:,} tokens, {self._timed / max(self._seconds, 1e-9):,.0f} a second"
        return f"{told}; programs were compiled in {self._compiling:.1f} s" if self._compiling else told
