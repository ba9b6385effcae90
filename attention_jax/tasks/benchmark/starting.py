"""Starts: from the command to the first step and to the end, with an empty compilation cache and with a full one; and
translation from a pipe, its start included."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from ml_collections import ConfigDict

from attention_jax.data.grammar import sentence_pairs
from attention_jax.tasks.benchmark.rounds import Row
from attention_jax.tasks.benchmark.tools import Tools
from attention_jax.training.progress import tell

UNSEEN = 1  # a seed of the embedded corpus's grammar, other than that of its training sentences


def measure_starts(config: ConfigDict, tools: Tools) -> Iterator[Row]:
    """Seconds to the first step and to the end of every case of `config.start.cases`."""
    for name, case in config.start.cases.items():
        path = config.data[case.corpus]
        if not path:
            tell(f"start  {name}: left out: name its corpus, --config.data.{case.corpus}=PATH")
            continue
        flags = (f"--config={case.config}", f"--config.data.path={Path(path).absolute()}", *case.flags)
        found: dict[str, list[float]] = {}
        for _ in range(config.start.rounds):
            for what, seconds in _started_twice(flags, tools).items():
                found.setdefault(what, []).append(seconds)
        variant = case.config.partition(":")[2]
        yield from (Row("start", f"{variant}: {what}", "s", values) for what, values in found.items())


def _started_twice(flags: tuple[str, ...], tools: Tools) -> dict[str, float]:
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir=tools.folder) as folder:
        for cache in ("an empty cache", "a full cache"):
            run = Path(folder) / cache.replace(" ", "_")
            metrics = run / "metrics.jsonl"
            seen = lambda metrics=metrics: metrics.exists() and metrics.stat().st_size > 0  # noqa: E731
            first, end = tools.launch([*flags, f"--workdir={run}"], Path(folder) / "cache", seen)
            found |= {f"first step, {cache}": first, f"all told, {cache}": end}
    return found


def measure_translation(config: ConfigDict, tools: Tools) -> Iterator[Row]:
    """Sentences a second of `--mode=translate` from a pipe, and those of the rest where there are many times as many.

    What many sentences take beside what few take is what translation takes once it has started. The model is one of the
    embedded corpus, whose grammar makes the sentences.
    """
    asked = config.translate
    run, cache = tools.folder / "translating", tools.folder / "cache"
    tools.launch([f"--config={asked.config}", *asked.flags, f"--workdir={run}"], cache)
    few = "".join(f"{pair.source}\n" for pair in sentence_pairs(UNSEEN, asked.sentences))
    for beams in asked.beams:
        flags = [f"--workdir={run}", "--mode=translate", f"--config.evaluate.beams={beams}"]
        for text in (few, few * asked.times):
            tools.launch(flags, cache, text=text)  # what is compiled is in the cache now
        ours, others = [], []
        for _ in range(config.rounds):
            seconds, whole = (tools.launch(flags, cache, text=text)[1] for text in (few, few * asked.times))
            ours.append(asked.sentences / seconds)
            others.append(asked.sentences * (asked.times - 1) / (whole - seconds))
        how = "greedy" if beams == 1 else f"beam {beams}"
        what = f"{asked.sentences:,} sentences from a pipe, {how}, with its start"
        yield Row("translate", what, "sentences/s", ours, {"without its start": others})
