"""The comparison on Multi30k: trains and measures what is missing, and prints the table.

    python -m experiments._table --data=PATH/multi30k    every row; what was killed goes on
    python -m experiments._table                         the table alone, from experiments/results/

A recipe is chosen on the validation sentences; the test sentences are scored once a seed of it, greedily and with five
beams.
"""

import json
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import app, flags
from tabulate import tabulate

from attention_jax.evaluation.by_task import OfSeed, Scores, answer
from attention_jax.evaluation.statistics import mean_interval, summarize
from attention_jax.reports.extrapolation import length_curves, panels
from attention_jax.reports.figures import curves
from attention_jax.runs.config import flatten
from configs.nmt import get_config
from experiments import _results

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ROOT / "docs" / "figures"
DATA = flags.DEFINE_string("data", "", "The folder of Multi30k: train, val and test_2016_flickr, .de and .en.")
RUNS = flags.DEFINE_string("runs", "runs/multi30k", "Where the runs are, a folder each.")
ONLY = flags.DEFINE_list("only", [], "Rows to train, as MODEL or MODEL-SEED; default: all.")
BEAMS = ("--config.evaluate.beams=5",)
BASELINE = "bahdanau"
MEASURED = ("validation", "test", "cost")  # of a kept result
SEARCH = ("attention_jax/decoding/beam.py",)
EARLIER = "† By a beam search that has changed since. ‡ Wall time with compilation and evaluations, not of steps alone."
LOCAL = ("data.path",)  # keys of a config that say where things are, and change no number


class Row(NamedTuple):
    """A model, how many seeds it gets, what was published, and overrides of its config: a protocol of its own."""

    model: str
    seeds: int
    published: str
    overrides: Mapping[str, Any] = {}

    @property
    def names(self) -> list[str]:
        """Its seeds' names, of their runs and kept results."""
        return [f"{self.model}-{seed}" for seed in range(self.seeds)]


ROWS = (
    Row("seq2seq", 1, "20.6"),
    Row("bahdanau", 3, "28.3"),
    Row("luong_concat", 3, "–"),
    Row("transformer_small", 3, "36.5"),
    Row(
        "transformer_tiny",
        1,
        "41.0 (English→German, five beams, Moses's tokens)",
        {
            "data.languages": ("en", "de"),
            "train.steps": 7000,  # an hour or so of one core; its own recipe is for a GPU's many epochs
            "train.evaluate_every": 1000,
            "train.checkpoint_every": 250,
            "model.kwargs.norm_first": True,
            "model.kwargs.dropout_sites": ("embeddings", "residual"),
            "optimizer.schedule": "cosine",
            "optimizer.learning_rate": 2e-3,
            "optimizer.warmup_steps": 300,
            "optimizer.dropout": 0.1,
            "data.batch_tokens": 1024,
            "data.vocabulary": 6000,
            "evaluate.combine": "average",
            "evaluate.last": 5,
            "evaluate.bleu_tokens": "moses",
        },
    ),
)


def main(argv: list[str]) -> None:
    del argv
    known = {row.model for row in ROWS} | {name for row in ROWS for name in row.names}
    if unknown := set(ONLY.value) - known:
        sys.exit(f"error: --only={','.join(sorted(unknown))}: choose among {', '.join(sorted(known))}.")
    for row in ROWS if DATA.value else ():
        for seed, name in enumerate(row.names):
            if not ONLY.value or {row.model, name} & set(ONLY.value):
                make(row, seed, name)
    table = tabulate([columns(row) for row in ROWS if found(row)], "keys", tablefmt="github", disable_numparse=True)
    print(table)
    if "†" in table or "‡" in table:
        print(f"\n{EARLIER}")
    draw_lengths()
    draw_learning()


def make(row: Row, seed: int, name: str) -> None:
    """Train one seed of a row, or go on with it, measure it both ways and keep the result."""
    kept, workdir = _kept(name), Path(RUNS.value).absolute() / name
    overrides = {"seeds": (seed,), **row.overrides}
    if kept.exists():
        require_recipe(kept, row, overrides)
        return
    config = f"--config=configs/nmt.py:{row.model},multi30k"
    asked = [f"--config.{key}={value}" for key, value in overrides.items()]
    launch = [sys.executable, "launch.py", config, f"--config.data.path={Path(DATA.value).absolute()}", *asked]
    _run([*launch, f"--workdir={workdir}"], stdout=sys.stderr)
    measured = _run([*launch, f"--workdir={workdir}", "--mode=evaluate", *BEAMS], stdout=subprocess.PIPE)
    result = json.loads((workdir / "result.json").read_text(encoding="utf-8"))
    with_beams = dict(line.split("\t") for line in measured.splitlines())
    result["test"]["beams"] = {metric: float(with_beams[f"test.{metric}"]) for metric in ("bleu", "bleu_13a", "chrf")}
    command = f"python launch.py {shlex.join([config, '--config.data.path=multi30k', *asked])}"
    _results.write(kept.stem, result | _results.evidence(workdir) | {"command": command, "learning": learning(workdir)})


def require_recipe(kept: Path, row: Row, overrides: Mapping[str, Any]) -> None:
    """Refuse a kept result where a value of its config is another one now; what its config lacks is newer than it."""
    config = get_config(f"{row.model},multi30k")
    config.update_from_flattened_dict(overrides)
    now = flatten(json.loads(json.dumps(config.to_dict())))
    before = flatten(json.loads(kept.read_text(encoding="utf-8"))["config"])
    changed = [key for key in before if key in now and key not in LOCAL and before[key] != now[key]]
    if changed:
        values = ", ".join(f"{key}: {before[key]} there, {now[key]} now" for key in changed)
        sys.exit(f"error: {kept}: made by another recipe ({values}). Remove it, and the row is trained again.")


def learning(workdir: Path) -> dict[str, list[float]]:
    """A run's validation BLEU by training step."""
    lines = map(json.loads, (workdir / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    measured = [line for line in lines if "validation.bleu" in line]
    return {"step": [line["step"] for line in measured], "bleu": [line["validation.bleu"] for line in measured]}


def found(row: Row) -> list[dict]:
    """The results that are kept of a row's seeds."""
    return [json.loads(_kept(name).read_text(encoding="utf-8")) for name in row.names if _kept(name).exists()]


def draw_lengths() -> None:
    """BLEU by the length of the source, of the models that translate German to English greedily."""
    scores: Scores = {}
    for row in ROWS:
        if not row.overrides and (members := found(row)):
            of_seeds = {one["seeds"][0]: OfSeed({"bleu": one["test"]["bleu_by_length"]}, 0.0) for one in members}
            scores[row.model] = {"test 2016, greedy": of_seeds}
    if scores:
        drawn = panels(answer(scores, "")["curves"], "bleu")
        path = FIGURES / "multi30k.png"
        length_curves(drawn, None, path, xlabel="words of the source", ylabel="BLEU", caption="")


def draw_learning() -> None:
    """Validation BLEU by training FLOPs, each row's first seed."""
    series = {}
    for row in ROWS:
        for one in found(row)[:1]:
            steps, bleu = one["learning"]["step"], one["learning"]["bleu"]
            spent = [step / steps[-1] * one["cost"]["flops"] / 1e15 for step in steps]
            languages = "→".join(one["config"]["data"]["languages"])
            series[f"{row.model} ({languages})" if row.overrides else row.model] = (spent, bleu)
    if series:
        path = FIGURES / "multi30k_learning.png"
        curves(series, path, "", xlabel="PFLOPs of training", ylabel="validation BLEU, greedy")


def columns(row: Row) -> dict[str, str]:
    """A line of the table: means over seeds with their 95% intervals."""
    members = found(row)
    means, intervals = summarize([{name: one[name] for name in MEASURED} for one in members])

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
        f"− {BASELINE}": difference(row),
        "5 beams": show("test", "beams", "bleu") + "†" * _is_of_another_search(members),
        "13a, greedy": show("test", "bleu_13a"),
        "chrF": show("test", "chrf"),
        "validation perplexity a word": show("validation", "perplexity_per_word", digits=2),
        "PFLOPs": f"{means['cost']['flops'] / 1e15:.2f}",
        "minutes": f"{means['cost']['seconds'] / 60:.0f}" + "‡" * ("step_seconds" not in means["cost"]),
    }


def difference(row: Row) -> str:
    """How much more test BLEU than the baseline, over the seeds that both have, with its 95% interval."""
    if row.overrides or row.model == BASELINE:
        return ""
    baseline = next(each for each in ROWS if each.model == BASELINE)
    own, its = ({one["seeds"][0]: one["test"]["bleu"] for one in found(each)} for each in (row, baseline))
    if not (shared := own.keys() & its.keys()):
        return ""
    mean, low, high = mean_interval([own[seed] - its[seed] for seed in shared])
    text = f"{mean:+.1f}" + (f" [{low:+.1f}, {high:+.1f}]" if len(shared) > 1 else "")
    return text.replace("-", "−")


def _is_of_another_search(members: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the beam search has changed since it found one of these, or that is not known."""
    return any(_results.changes(one["code"]["commit"], SEARCH) != [] for one in members)


def _kept(name: str) -> Path:
    return _results.RESULTS / f"multi30k-{name}.json"


def _run(command: list[str], stdout: Any) -> str:
    """A command's standard output; where it fails, it has said why, and so do we end."""
    done = subprocess.run(command, cwd=ROOT, stdout=stdout, text=True)
    return done.stdout if done.returncode == 0 else sys.exit(done.returncode)


if __name__ == "__main__":
    app.run(main)
