"""The table of Multi30k in docs/translation.md and its two figures, from the kept answer of the sweep `multi30k`.

    python -m experiments._multi30k

The sweep is `--config=configs/nmt.py:bahdanau,multi30k --mode=sweep --sweep=multi30k`; `python -m experiments._results
--keep=FOLDER --name=multi30k` keeps its answer. Recipes are chosen on the validation sentences; the test sentences are
scored once a seed of one, greedily and with five beams.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from absl import app
from tabulate import tabulate

from attention_jax.evaluation.by_group import OfSeed, Scores, answer
from attention_jax.evaluation.comparison import Interval, Measured, baselines_of, compare, interval
from attention_jax.reports.extrapolation import length_curves, panels
from attention_jax.reports.figures import curves
from attention_jax.runs.code import ROOT, changes
from experiments import _results

NAME = "multi30k"
FIGURES = ROOT / "docs" / "figures"
BASELINE = "bahdanau"
PUBLISHED = {
    "seq2seq": "20.6",
    "bahdanau": "28.3",
    "transformer_small": "36.5",
    "transformer_tiny": "41.0 (English→German, five beams, Moses's tokens)",
}
SEARCH = ("attention_jax/decoding/beam.py",)
EARLIER = "† By a beam search that has changed since. ‡ Wall time with compilation and evaluations, not of steps alone."
LENGTHS = "test.bleu_by_length."

Record = Mapping[str, Any]  # of a cell and seed: see attention_jax/sweeps/records.py


class Row(NamedTuple):
    """A model's records, one a seed; it is comparable where it differs from the baseline in the model alone."""

    model: str
    records: Sequence[Record]

    @property
    def is_comparable(self) -> bool:
        return set(self.records[0]["overrides"]) == {"variant"}

    def values(self, metric: str) -> dict[int, float]:
        """A metric by seed."""
        return {one["seed"]: one["metrics"][metric] for one in self.records}


def main(argv: list[str]) -> None:
    del argv
    rows = read()
    table = tabulate(table_of(rows), "keys", tablefmt="github", disable_numparse=True)
    print(table)
    if "†" in table or "‡" in table:
        print(f"\n{EARLIER}")
    draw_lengths(rows, FIGURES / "multi30k.png")
    draw_learning(rows, FIGURES / "multi30k_learning.png")


def read() -> list[Row]:
    """The models of the kept answer with what was measured of them."""
    kept = json.loads((_results.RESULTS / f"{NAME}.json").read_text(encoding="utf-8"))
    found: dict[str, list[Record]] = {}
    for record in kept["cells"]:
        if "metrics" in record:
            found.setdefault(record["overrides"]["variant"].partition(",")[0], []).append(record)
    return [Row(*one) for one in found.items()]


def table_of(rows: Sequence[Row]) -> list[dict[str, str]]:
    """The lines of the table: means over seeds with their 95% intervals, and differences to the baseline."""
    measured = [Measured(row.model, "" if row.is_comparable else row.model, row.values("test.bleu")) for row in rows]
    compared = compare("test.bleu", measured, baselines_of(measured, {"": BASELINE}))
    return [_line(row, found.difference) for row, found in zip(rows, compared.rows, strict=True)]


def _line(row: Row, difference: Interval | None) -> dict[str, str]:
    def show(metric: str, digits: int = 1) -> str:
        return _shown(interval(metric, list(row.values(metric).values())), f".{digits}f")

    cost = {name: interval(f"cost.{name}", [*row.values(f"cost.{name}").values()]).mean for name in COSTS}
    return {
        "model": row.model,
        "seeds": str(len(row.records)),
        "parameters": f"{cost['parameters'] / 1e6:.1f}M",
        "published": PUBLISHED.get(row.model, "–"),
        "test BLEU, greedy": show("test.bleu"),
        f"− {BASELINE}": _shown(difference, "+.1f").replace("-", "−") if difference else "",
        "5 beams": show("test.beams.bleu") + "†" * _is_of_another_search(row.records),
        "13a, greedy": show("test.bleu_13a"),
        "chrF": show("test.chrf"),
        "validation perplexity a word": show("validation.perplexity_per_word", digits=2),
        "PFLOPs": f"{cost['flops'] / 1e15:.2f}",
        "minutes": f"{cost['seconds'] / 60:.0f}" + "‡" * _is_of_the_wall(row.records),
    }


COSTS = ("parameters", "flops", "seconds")


def draw_lengths(rows: Sequence[Row], path: Path) -> None:
    """BLEU by the length of the source, of the models that have the baseline's protocol."""
    scores: Scores = {
        row.model: {"test 2016, greedy": {one["seed"]: OfSeed({"bleu": _by_length(one)}, 0.0) for one in row.records}}
        for row in rows
        if row.is_comparable
    }
    drawn = panels(answer(scores, {})["curves"], "bleu")
    length_curves(drawn, None, path, xlabel="words of the source", ylabel="BLEU", caption="")


def draw_learning(rows: Sequence[Row], path: Path) -> None:
    """Validation BLEU by training FLOPs, each row's first seed."""
    series = {}
    for row in rows:
        first = row.records[0]
        steps, bleu = zip(*first["learning"], strict=True)
        spent = [step / steps[-1] * first["metrics"]["cost.flops"] / 1e15 for step in steps]
        languages = "→".join(first["overrides"].get("data.languages", ()))
        series[f"{row.model} ({languages})" if languages else row.model] = (spent, bleu)
    curves(series, path, "", xlabel="PFLOPs of training", ylabel="validation BLEU, greedy")


def _by_length(record: Record) -> dict[str, float]:
    return {name.removeprefix(LENGTHS): v for name, v in record["metrics"].items() if name.startswith(LENGTHS)}


def _shown(found: Interval, form: str) -> str:
    ends = "" if found.low is None else f" [{found.low:{form}}, {found.high:{form}}]"
    return f"{found.mean:{form}}{ends}"


def _is_of_another_search(records: Sequence[Record]) -> bool:
    """Whether the beam search has changed since it found one of these, or that is not known."""
    return any(changes(one["commit"], SEARCH) != [] for one in records)


def _is_of_the_wall(records: Sequence[Record]) -> bool:
    """Whether seconds are those of a whole run, as they were before steps were timed."""
    return any("cost.step_seconds" not in one["metrics"] for one in records)


if __name__ == "__main__":
    app.run(main)
