"""The comparison on Multi30k: trains and measures what is missing, and prints the table.

    python -m experiments._table --data=PATH/multi30k    every row; what was killed goes on
    python -m experiments._table                         the table alone, from experiments/results/

A row's choices were made on the validation sentences; the test sentences are scored once a seed, greedily and with
five beams.
"""

import datetime
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from absl import app, flags
from tabulate import tabulate

from attention_jax.evaluation.statistics import summarize
from attention_jax.reports.extrapolation import length_curves
from experiments._comparison import Measured, Scores, answer, panels

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "experiments" / "results"
FIGURE = ROOT / "docs" / "figures" / "multi30k.png"
DATA = flags.DEFINE_string("data", "", "The folder of Multi30k: train, val and test_2016_flickr, .de and .en.")
RUNS = flags.DEFINE_string("runs", "runs/multi30k", "Where the runs are, a folder each.")
ONLY = flags.DEFINE_list("only", [], "Rows to train, as MODEL or MODEL-SEED; default: all.")
BEAMS = ("--config.evaluate.beams=5",)


class Row(NamedTuple):
    """A model, how many seeds it gets, what was published, and overrides of its config: a protocol of its own."""

    model: str
    seeds: int
    published: str
    overrides: tuple[str, ...] = ()


ROWS = (
    Row("seq2seq", 1, "20.6"),
    Row("bahdanau", 3, "28.3"),
    Row("luong_concat", 3, "–"),
    Row("transformer_small", 3, "36.5"),
    Row(
        "transformer_tiny",
        1,
        "41.0 (English→German, five beams, Moses's tokens)",
        (
            "--config.data.languages=('en','de')",
            "--config.train.steps=7000",  # an hour or so of one core; its own recipe is for a GPU's many epochs
            "--config.train.evaluate_every=1000",
            "--config.train.checkpoint_every=250",
            "--config.model.kwargs.norm_first=True",
            "--config.model.kwargs.dropout_sites=('embeddings','residual')",
            "--config.optimizer.schedule=cosine",
            "--config.optimizer.learning_rate=2e-3",
            "--config.optimizer.warmup_steps=300",
            "--config.optimizer.dropout=0.1",
            "--config.data.batch_tokens=1024",
            "--config.data.vocabulary=6000",
            "--config.evaluate.combine=average",
            "--config.evaluate.last=5",
            "--config.evaluate.bleu_tokens=moses",
        ),
    ),
)


def main(argv: list[str]) -> None:
    del argv
    RESULTS.mkdir(parents=True, exist_ok=True)
    for row in ROWS if DATA.value else ():
        for seed in range(row.seeds):
            if not ONLY.value or {row.model, f"{row.model}-{seed}"} & set(ONLY.value):
                make(row, seed)
    print(
        tabulate([columns(row) for row in ROWS if found(row)], headers="keys", tablefmt="github", disable_numparse=True)
    )
    draw()


def make(row: Row, seed: int) -> None:
    """Train one seed of a row, or go on with it, measure it both ways and keep the result."""
    kept = RESULTS / f"multi30k-{row.model}-{seed}.json"
    if kept.exists():
        return
    workdir = Path(RUNS.value).absolute() / f"{row.model}-{seed}"
    config = f"--config=configs/nmt.py:{row.model},multi30k"
    asked = [config, f"--config.data.path={Path(DATA.value).absolute()}", f"--config.seeds=({seed},)", *row.overrides]
    launch = [sys.executable, "launch.py", *asked, f"--workdir={workdir}"]
    subprocess.run(launch, cwd=ROOT, check=True, stdout=sys.stderr)
    measured = subprocess.run(
        [*launch, "--mode=evaluate", *BEAMS], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    with_beams = dict(line.split("\t") for line in measured.stdout.splitlines())
    result = json.loads((workdir / "result.json").read_text(encoding="utf-8"))
    finished = datetime.date.fromtimestamp((workdir / "result.json").stat().st_mtime)
    result["test"]["beams"] = {name: float(with_beams[f"test.{name}"]) for name in ("bleu", "bleu_13a", "chrf")}
    asked[1] = "--config.data.path=multi30k"
    result |= {"command": f"python launch.py {shlex.join(asked)}", "date": str(finished)}
    del result["data"]
    kept.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def found(row: Row) -> list[dict]:
    """The results that are kept of a row's seeds."""
    paths = (RESULTS / f"multi30k-{row.model}-{seed}.json" for seed in range(row.seeds))
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths if path.exists()]


def draw() -> None:
    """BLEU by the length of the source, of the models that translate German to English greedily."""
    scores: Scores = {}
    for row in ROWS:
        if not row.overrides and (members := found(row)):
            of_seeds = {one["seeds"][0]: Measured({"bleu": one["test"]["bleu_by_length"]}, 0.0) for one in members}
            scores[row.model] = {"test 2016, greedy": of_seeds}
    if scores:
        drawn = panels(answer(scores, 1, "")["curves"], "bleu")
        length_curves(drawn, None, FIGURE, xlabel="words of the source", ylabel="BLEU", caption="")


def columns(row: Row) -> dict[str, str]:
    """A line of the table: means over seeds with their 95% intervals."""
    members = found(row)
    means, intervals = summarize(members)

    def show(*path: str, digits: int = 1) -> str:
        value: Any = means
        ends: Any = intervals
        for name in path:
            value, ends = value[name], ends.get(name, {})
        within = f" [{ends[0]:.{digits}f}, {ends[1]:.{digits}f}]" if ends else ""
        return f"{value:.{digits}f}{within}"

    return {
        "model": row.model,
        "seeds": str(len(members)),
        "parameters": f"{means['cost']['parameters'] / 1e6:.1f}M",
        "published": row.published,
        "test BLEU, greedy": show("test", "bleu"),
        "5 beams": show("test", "beams", "bleu"),
        "13a, greedy": show("test", "bleu_13a"),
        "chrF": show("test", "chrf"),
        "validation perplexity a word": show("validation", "perplexity_per_word", digits=2),
        "PFLOPs": f"{means['cost']['flops'] / 1e15:.2f}",
        "minutes": f"{means['cost']['seconds'] / 60:.0f}",
    }


if __name__ == "__main__":
    app.run(main)
