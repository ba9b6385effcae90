"""BLEU against the length of the source, of every setting of a sweep (Bahdanau et al. 2015, fig. 2)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from attention_jax.evaluation.by_group import OfSeed, answer, gather, groups_of
from attention_jax.reports.conclusion import Conclusion, FinishedCell
from attention_jax.reports.extrapolation import length_curves, order_table, panels

TASK = "translation"


def conclude(config: ConfigDict, cells: Sequence[FinishedCell], folder: Path, palette: Mapping[str, str]) -> Conclusion:
    """Curves of test BLEU by source length, and the order of settings by test BLEU unless the sweep has it already.

    Nothing if settings that are compared count other tokens: theirs is not one BLEU.
    """
    cells = [cell for cell in cells if cell.result["status"] == "diverged" or "test" in cell.result["members"][0]]
    counted = {(cell.group, cell.config.evaluate.bleu_tokens) for cell in cells}
    is_one_bleu = len(counted) == len({group for group, _ in counted})
    if not is_one_bleu or all(cell.result["status"] == "diverged" for cell in cells):
        return Conclusion({"orders": {}}, [], [])
    scores = gather([(cell.setting, cell.group or TASK, cell.result) for cell in cells], _of_member)
    baselines = {cell.group or TASK: cell.baseline for cell in cells}
    result = answer(scores, baselines)
    caption = "BLEU by the source's length, means over seeds in their 95% intervals."
    drawn = panels(result["curves"], "bleu")
    path = folder / "bleu_by_length.png"
    xlabel, ylabel = "words of the source", "test BLEU"
    figure = length_curves(drawn, None, path, xlabel=xlabel, ylabel=ylabel, caption=caption, palette=palette)
    table = order_table(result["orders"], groups_of(scores), "Test BLEU", "setting", "BLEU", baselines)
    tables = [] if "test.bleu" in config.sweep.metric.replace(" ", "").split(",") else [table]
    return Conclusion(result, [figure], tables, leads=False)


def _of_member(member: Mapping[str, Any]) -> OfSeed:
    return OfSeed({"bleu": member["test"]["bleu_by_length"]}, member["test"]["bleu"])
