"""BLEU against the length of the source, of every setting of a sweep (Bahdanau et al. 2015, fig. 2)."""

from collections.abc import Sequence
from pathlib import Path

from ml_collections import ConfigDict

from attention_jax.reports.extrapolation import length_curves
from attention_jax.runs.experiment import Conclusion, FinishedCell
from experiments._comparison import Measured, answer, baseline_of, gather, order_table, panels, settings_of, tasks_of

TASK = "translation"


def conclude(config: ConfigDict, cells: Sequence[FinishedCell], folder: Path) -> Conclusion:
    """Curves of test BLEU by source length, and the order of settings by test BLEU."""
    measured = [cell for cell in cells if "test" in cell.result]
    if not measured:
        return Conclusion({"orders": {}}, [], [])
    names = settings_of(config, measured, TASK)
    scores = gather(
        measured,
        names,
        lambda cell: _task_of(config, cell),
        lambda member: Measured({"bleu": member["test"]["bleu_by_length"]}, member["test"]["bleu"]),
    )
    baseline = baseline_of(config, measured, names)
    result = answer(scores, 1, baseline)
    caption = "BLEU by the source's length, means over seeds in their 95% intervals."
    drawn = panels(result["curves"], "bleu")
    path = folder / "bleu_by_length.png"
    figure = length_curves(drawn, None, path, xlabel="words of the source", ylabel="test BLEU", caption=caption)
    table = order_table(result["orders"], tasks_of(scores), "Test BLEU", "setting", "BLEU", baseline)
    return Conclusion(result, [figure], [table])


def _task_of(config: ConfigDict, cell: FinishedCell) -> str:
    """What `config.sweep.within` says that settings are compared within."""
    own = {key.rpartition(".")[2]: cell.overrides[key] for key in config.sweep.within if key in cell.overrides}
    return ", ".join(f"{name} {value}" for name, value in own.items()) or TASK
