"""A text of any size as a language model's source: memory-mapped, read batch by batch, in windows or documents."""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from attention_jax import hosts
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
from attention_jax.training.feeding import Batches
from attention_jax.training.state import Variables

Stream = Windows | Packed
PACKINGS: dict[str, Callable[[TextSplit, int, int], Stream]] = {"windows": Windows.of, "documents": Packed.of}
HELD_OUT = ("validation", "test")


def open_stream(config: ConfigDict, folder: Path | None) -> Source:
    """The text that `config.data` names. Without a folder nothing is read, and only shapes are right.

    Raises UserError for values that do not fit, and for a text that is shorter than a window.
    """
    data = config.data
    check(config)
    text = None if folder is None else hosts.in_turn(lambda: load_text(folder, which(data)))
    splits = _no_text(data.length) if text is None else text.splits
    stream = PACKINGS[data.packing](splits["train"], data.length, data.batch)
    shown = jnp.asarray(np.array(splits["validation"].tokens[: data.length])[None], jnp.int32)
    return Source(
        vocabulary=data.vocabulary if text is None else text.vocabulary,
        trained=data.length,
        lengths=(data.length,),
        longest=max(data.length, config.evaluate.length),
        length_keys=f"config.data.length={data.length} and config.evaluate.length={config.evaluate.length}",
        batches=_batches(stream, config.train.steps_per_call),
        texts=_batch,
        measure=lambda model: _measure(config, splits, model),
        example=lambda config, length: shown[:, :length],
        steps_per_epoch=config.train.steps,
        measure_so_far=lambda model: _measure_so_far(config, splits["validation"], model),
        measured=("validation",),
        has_segments=data.packing == "documents",
        held_out=lambda count, length: next(_rows(config, splits["validation"], length, count, length)),
        text=text,
    )


OPENERS = dict.fromkeys(("text", "jsonl", "tfds"), open_stream)


def check(config: ConfigDict) -> None:
    """Raise UserError for values with which no text can be read, or that do not fit one another."""
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
            f"config.evaluate.stride={asked.stride}: is more than a window's {asked.length or data.length} tokens, and "
            "would leave tokens out. Lower it, or raise config.evaluate.length."
        )
    if data.packing == "documents" and not has_documents(which(data)):
        raise UserError(
            "config.data.packing='documents': one text file has no documents. Choose 'windows', or give a folder of "
            "*.txt, JSON lines or a data set of TFDS."
        )
    if data.packing == "documents" and asked.stride:
        raise UserError(
            f"config.evaluate.stride={asked.stride}: is for config.data.packing='windows', and documents are read "
            "whole. Set it 0."
        )


def which(data: ConfigDict) -> TextConfig:
    """The keys of `config.data` that say which text is read."""
    return TextConfig(**{name: data[name] for name in TextConfig._fields})


def identify(data: ConfigDict) -> str:
    """The identity of the text. Raises UserError if a file is missing."""
    return identify_text(which(data))


def evaluate_file(session: Session, of_seeds: list[Variables], path: str) -> list[dict[str, Any]]:
    """Each seed's metrics of any text file, folder of *.txt, or JSON lines, with the text's counts.

    The text is tokenized as the text of training. Raises UserError if it is missing or empty.
    """
    source, config, total = session.source, session.config, session.total
    assert source.text is not None
    kind = "jsonl" if path.endswith(".jsonl") else "text"
    asked = which(config.data)._replace(source=kind, path=path, train_path="", validation_path="", test_path="")
    with tempfile.TemporaryDirectory(prefix="attention_jax-") as folder:
        split = read_split(Path(folder), asked, source.text)
        if not len(split.tokens):
            raise UserError(f"{path}: is empty. Give a text to measure.")
        figures = [figures_of(*total(variables, _in_order(config, split)), split.counts) for variables in of_seeds]
    return [{**of_seed, **_counted(split.counts)} for of_seed in figures]


def _counted(counts: Counts) -> dict[str, int]:
    return {name: getattr(counts, name) for name in ("tokens", "words", "bytes", "unknown")}


def _batches(stream: Stream, steps_per_call: int) -> Callable[[int, int, int], Batches]:
    """(seed, step, stop) → the batches of one call."""

    def read(rows):
        found = stream.at(rows)._asdict()
        return {name: found[name] for name in ("tokens", "targets", "segments", "positions") if found[name] is not None}

    def batches(seed: int, step: int, stop: int) -> Batches:
        return Batches(stream.drawn(seed, step, min(stop, step + steps_per_call)), read=read)

    return batches


def _batch(rows: Mapping[str, Any], hyper: Any) -> Texts:
    """A step's batch; every token of a text is a target, and none is `PAD`."""
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
    """Measures the first `config.evaluate.tokens` tokens of the validation split."""
    total = total_of(model)

    def measure(variables: Variables, own: ConfigDict):
        del own
        batches = _first(_in_order(config, split), config.evaluate.tokens)
        return {"validation": figures_of(*total(variables, batches), split.counts)}

    return measure


def _in_order(config: ConfigDict, split: TextSplit) -> Iterator[Rows]:
    """Every token of a split as a target once, in rows as `config.evaluate` says."""
    asked = config.evaluate
    length = asked.length or config.data.length
    return _rows(config, split, length, asked.batch, asked.stride or length)


def _rows(config: ConfigDict, split: TextSplit, length: int, batch: int, stride: int) -> Iterator[Rows]:
    """The rows of a split in batches: packed documents, or windows that begin `stride` tokens after one another."""
    if config.data.packing == "documents":
        return Packed.of(split, length, batch).in_order()
    return Windows(split.tokens, length, batch).in_order(stride)


def _first(batches: Iterator[Rows], tokens: int) -> Iterator[Rows]:
    """The first batches, until they have so many targets; 0: all."""
    total = 0
    for rows in batches:
        yield rows
        total += int(rows.is_counted.sum())
        if tokens and total >= tokens:
            return


def _no_text(length: int) -> dict[str, TextSplit]:
    nothing = TextSplit(np.zeros(length, np.uint8), np.array([0, length]), Counts(1, 1, 1, 1, length, 0))
    return {"train": nothing, "validation": nothing}
