"""The answer of a search: a sweep's, over the seeds that chose, led by the winner over seeds that chose nothing."""

import dataclasses
from collections.abc import Collection
from pathlib import Path

from attention_jax.errors import UserError
from attention_jax.evaluation.comparison import Interval
from attention_jax.reports.conclusion import Conclusion
from attention_jax.reports.page import Estimate
from attention_jax.reports.search import trials_figure, winner_table
from attention_jax.reports.sweep import Answer, estimate
from attention_jax.sweeps.answer import compare, write_answer
from attention_jax.sweeps.folder import Sweep, read_result
from attention_jax.sweeps.plan import only
from attention_jax.sweeps.searching import objective_of, reporting_seeds
from attention_jax.sweeps.trials import Trial, best_of, cells_of, read_asked, require_ended, tried

FRESH = "The table of settings is of the seeds that chose: the winner's estimate is that of the fresh seeds alone."


def write_found(sweep: Sweep) -> Path:
    """Write a search's tables, figures and page; its path. Raises UserError where it has not ended."""
    asked = read_asked(sweep.path)
    if asked is None or len(asked.trials) < sweep.config.search.trials:
        raise _not_ended(sweep)
    objective = objective_of(sweep.config, sweep.experiment)
    trials = tried(sweep, asked.trials, objective)
    best = best_of(trials, objective)
    fresh = _fresh(sweep, best)
    chose = _part(sweep, {name for trial in trials for name in trial.cells})
    return write_answer(sweep, chose, lambda answers: _concluded(sweep, trials, best, answers, fresh))


def _fresh(sweep: Sweep, best: Trial) -> list[Answer]:
    """The winner over the seeds that chose nothing; nothing where none of them has numbers."""
    names = cells_of(sweep, best.overrides, reporting_seeds(sweep.config))
    if len(names) < len(reporting_seeds(sweep.config)):
        raise _not_ended(sweep)
    require_ended(sweep, names)
    results = (read_result(sweep.cell(name)) for name in names)
    return compare(_part(sweep, names)) if any(result and result["status"] == "finished" for result in results) else []


def _not_ended(sweep: Sweep) -> UserError:
    return UserError(f"{sweep.path}: the search has not ended. Go on with it: --mode=search.")


def _part(sweep: Sweep, names: Collection[str]) -> Sweep:
    """The sweep of some of its cells."""
    return dataclasses.replace(sweep, plan=only(sweep.plan, lambda name: name in names))


def _concluded(
    sweep: Sweep, trials: list[Trial], best: Trial, answers: list[Answer], fresh: list[Answer]
) -> Conclusion:
    """What leads: the winner over fresh seeds beside what chose it, and every trial."""
    index = next(i for i, setting in enumerate(answers[0].settings) if best.cells[0] in setting.cells)
    winner, settings = answers[0].comparison.rows[index].measured.setting, sweep.config.search
    reported = {one.metric: one.comparison.rows[0].value for one in fresh}
    chosen = {one.metric: one.comparison.rows[index].value for one in answers}
    objective, reporting = answers[0].metric, list(reporting_seeds(sweep.config))
    won = f"{winner} won{_shared(trials, best)}"
    lost = [*fresh[0].comparison.rows[0].measured.lost] if fresh else reporting
    said = (
        f"A search by {settings.sampler}, {_pruned(settings.pruner)}, {len(trials)} trials in batches of "
        f"{settings.batch}: {won}. With fresh seeds ({', '.join(map(str, reporting))}) its {objective} is "
        f"{_shown(reported.get(objective))}{_without(lost)}; with those that chose it, {_shown(chosen[objective])}.",
    )
    figure = trials_figure(objective, [t.value for t in trials], settings.batch, sweep.path / "figures" / "trials.png")
    result = {
        "search": {
            "winner": best.overrides,
            "reporting_seeds": reporting,
            "fresh": {name: _numbers(value) for name, value in reported.items()},
            "fresh_lost": lost,
            "trials": [{"overrides": trial.overrides, "value": trial.value} for trial in trials],
        }
    }
    table = winner_table(winner, _estimates(reported), _estimates(chosen))
    return Conclusion(result, [figure], [table], said=said, notes=(FRESH,))


def _shared(trials: list[Trial], best: Trial) -> str:
    """How many settings did as well, of which the first tried is the winner."""
    alike = {tuple(trial.cells) for trial in trials if trial.value == best.value}
    return f", the first of {len(alike)} that did as well" if len(alike) > 1 else ""


def _without(lost: list[int]) -> str:
    return f", without {', '.join(map(str, lost))}, which diverged" if lost else ""


def _pruned(pruner: str) -> str:
    return "nothing pruned" if pruner == "none" else f"pruned by {pruner}"


def _shown(value: Interval | None) -> str:
    return "not known" if value is None else str(estimate(value))


def _numbers(value: Interval | None) -> list[float | None] | None:
    return None if value is None else list(value)


def _estimates(values: dict[str, Interval | None]) -> dict[str, Estimate | None]:
    return {name: estimate(value) for name, value in values.items()}
