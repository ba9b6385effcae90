"""A text of any size as a language model's source: its memory map is read batch by batch, in windows or documents."""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from attention_jax.data.config import TextConfig
from attention_jax.data.packing import Packed
from attention_jax.data.text import Counts, TextSplit
from attention_jax.data.text_importing import identify_text, load_text, read_split, require_usable
from attention_jax.data.text_sources import has_documents
from attention_jax.data.tokenizers import PAD
from attention_jax.data.windows import Rows, Windows
from attention_jax.errors import UserError
from attention_jax.models.language_model import LanguageModel
from attention_jax.tasks.language_model.measuring import figures_of, total_of
from attention_jax.tasks.language_model.model import Texts
from attention_jax.tasks.language_model.session import Session
from attention_jax.tasks.language_model.source import Measure, Source, require_positive
from attention_jax.training.state import Variables

Stream = Windows | Packed
PACKINGS: dict[str, Callable[[TextSplit, int, int], Stream]] = {"windows": Windows.of, "documents": Packed.of}
HELD_OUT = ("validation", "test")


def open_stream(config: ConfigDict, folder: Path | None) -> Source:
    """The text that `config.data` names; without a folder nothing is read: only shapes are right.

    Raises UserError for values that do not fit, and where the text is shorter than a window.
    """
    data = config.data
    check(config)
    text = None if folder is None else load_text(folder, which(data))
    splits = _no_text(data.length) if text is None else text.splits
    stream = PACKINGS[data.packing](splits["train"], data.length, data.batch)
    shown = jnp.asarray(np.array(splits["validation"].tokens[: data.length])[None], jnp.int32)
    return Source(
        vocabulary=data.vocabulary if text is None else text.vocabulary,
        trained=data.length,
        lengths=(data.length,),
        places=max(data.length, config.evaluate.length),
        told=f"config.data.length={data.length}, config.evaluate.length={config.evaluate.length}",
        call=_calls(stream, config.train.steps_per_call),
        texts=_batch,
        measure=lambda model: _measure(config, splits, model),
        example=lambda config, length: shown[:, :length],
        steps_per_epoch=config.train.steps,
        measure_so_far=lambda model: _measure_so_far(config, splits["validation"], model),
        is_table_shared=False,
        has_segments=data.packing == "documents",
        text=text,
    )


OPENERS = dict.fromkeys(("text", "jsonl", "tfds"), open_stream)


def check(config: ConfigDict) -> None:
    """Raise UserError for values that no text can be read with, or that do not fit one another."""
    data, asked = config.data, config.evaluate
    require_usable(which(data))
    require_positive(data, "length", "batch")
    if data.packing not in PACKINGS:
        raise UserError(f"config.data.packing={data.packing!r}: choose one of {', '.join(PACKINGS)}.")
    if asked.batch < 1:
        raise UserError(f"config.evaluate.batch={asked.batch}: needs 1 or more.")
    for name in ("length", "stride", "tokens"):
        if asked[name] < 0:
            raise UserError(f"config.evaluate.{name}={asked[name]}: needs 0 or more.")
    if asked.stride > (asked.length or data.length):
        raise UserError(
            f"config.evaluate.stride={asked.stride}: windows of {asked.length or data.length} tokens that begin so far "
            "apart would leave tokens out. Lower it, or raise config.evaluate.length."
        )
    if data.packing == "documents" and not has_documents(which(data)):
        raise UserError(
            "config.data.packing='documents': a text file by itself is one running text. Choose windows, or give a "
            "folder of *.txt, JSON lines or a set of TFDS."
        )
    if data.packing == "documents" and asked.stride:
        raise UserError(
            f"config.evaluate.stride={asked.stride}: is of windows, and documents are read whole: leave it 0."
        )


def which(data: ConfigDict) -> TextConfig:
    """The keys of `config.data` that say which text it is."""
    return TextConfig(**{name: data[name] for name in TextConfig._fields})


def identify(data: ConfigDict) -> str:
    """What tells a text from others. Raises UserError where its file is missing."""
    return identify_text(which(data))


def evaluate_file(session: Session, every: list[Variables], path: str) -> list[dict[str, Any]]:
    """The figures of any text file, of a folder of *.txt or of JSON lines, by each seed's variables; and its counts.

    It is tokenized as the text that was trained on. Raises UserError where there is none, or it is empty.
    """
    source, config, total = session.source, session.config, session.total
    assert source.text is not None
    kind = "jsonl" if path.endswith(".jsonl") else "text"
    asked = which(config.data)._replace(source=kind, path=path, train_path="", validation_path="", test_path="")
    with tempfile.TemporaryDirectory(prefix="attention_jax-") as folder:
        split = read_split(Path(folder), asked, source.text)
        if not len(split.tokens):
            raise UserError(f"{path}: empty, nothing to measure.")
        measured = [figures_of(*total(one, _in_order(config, split)), split.counts) for one in every]
    return [{**found, **_counted(split.counts)} for found in measured]


def _counted(counts: Counts) -> dict[str, int]:
    return {name: getattr(counts, name) for name in ("tokens", "words", "bytes", "unknown")}


def _calls(stream: Stream, steps_per_call: int) -> Callable[[int, int, int], tuple[dict, np.ndarray]]:
    """The rows of each call alone, filled up with padding to `steps_per_call` steps, and their places."""

    def call(seed: int, step: int, stop: int) -> tuple[dict, np.ndarray]:
        count = min(stop - step, steps_per_call)
        rows = stream.rows(seed, step, step + count)._asdict()
        missing = (steps_per_call - count) * stream.batch
        table = {
            name: np.pad(rows[name].reshape(-1, stream.length), ((0, missing), (0, 0)))
            for name in ("tokens", "targets", "segments", "positions")
            if rows[name] is not None
        }
        return table, np.arange(count * stream.batch, dtype=np.int32).reshape(count, stream.batch)

    return call


def _batch(rows: Mapping[str, Any], hyper: Any) -> Texts:
    """A step's rows; every token of a text is a target, and none is `PAD`."""
    del hyper
    packed = rows.get("segments"), rows.get("positions")
    return Texts(rows["tokens"], rows["targets"], rows["targets"] != PAD, None, *packed)


def _measure(config: ConfigDict, splits: Mapping[str, TextSplit], model: LanguageModel) -> Measure:
    total = total_of(model)

    def measure(variables: Variables, own: ConfigDict):
        del own
        held_out = {name: splits[name] for name in HELD_OUT if name in splits}
        return {
            name: figures_of(*total(variables, _in_order(config, split)), split.counts)
            for name, split in held_out.items()
        }

    return measure


def _measure_so_far(config: ConfigDict, split: TextSplit, model: LanguageModel) -> Measure:
    """Of the first `config.evaluate.tokens` tokens to validate on."""
    total = total_of(model)

    def measure(variables: Variables, own: ConfigDict):
        del own
        batches = _first(_in_order(config, split), config.evaluate.tokens)
        return {"validation": figures_of(*total(variables, batches), split.counts)}

    return measure


def _in_order(config: ConfigDict, split: TextSplit) -> Iterator[Rows]:
    """Every token of a split as a target once, as `config.evaluate` says."""
    asked, data = config.evaluate, config.data
    length = asked.length or data.length
    if data.packing == "documents":
        return Packed.of(split, length, asked.batch).in_order()
    return Windows(split.tokens, length, asked.batch).in_order(asked.stride or length)


def _first(batches: Iterator[Rows], tokens: int) -> Iterator[Rows]:
    """Batches until they count so many tokens; 0: all."""
    total = 0
    for rows in batches:
        yield rows
        total += int(rows.is_counted.sum())
        if tokens and total >= tokens:
            return


def _no_text(length: int) -> dict[str, TextSplit]:
    nothing = TextSplit(np.zeros(length, np.uint8), np.array([0, length]), Counts(1, 1, 1, 1, length, 0))
    return {"train": nothing, "validation": nothing}
