"""How much better than at random a search is, for the same budget: searches played over a finished sweep."""

from pathlib import Path

from ml_collections import ConfigDict

from attention_jax.errors import UserError
from attention_jax.evaluation.metrics import metric
from attention_jax.evaluation.statistics import over_seeds
from attention_jax.reports.figures import Figure
from attention_jax.reports.page import Estimate, Table
from attention_jax.reports.search import regret_figure
from attention_jax.runs.experiment import Experiment, Together
from attention_jax.runs.folder import Run
from attention_jax.sweeps.regret import played, read_table, require_methods
from attention_jax.training.description import Description


def check(config: ConfigDict) -> None:
    """Raise UserError for values that cannot be used."""
    require_methods(config.methods)
    if not config.table:
        raise UserError("config.table is empty: name the folder of a finished sweep over a grid of numbers.")
    if config.batch < 1 or not config.budgets or min(config.budgets) < config.batch:
        raise UserError(
            f"config.budgets={config.budgets}: needs budgets of a batch, config.batch={config.batch}, or more."
        )


def together(config: ConfigDict, how: str) -> Together:
    """Nothing is trained: a seed is a repeat of every search over the table."""
    del how
    check(config)
    return Together(lambda configs, runs: [_measured(one) for one in configs])


def _measured(config: ConfigDict) -> dict:
    table = read_table(Path(config.table))
    return over_seeds([played(config, table, seed) for seed in config.seeds])


def evaluate(session: ConfigDict, config: ConfigDict, run: Run) -> dict:
    """Play again."""
    del session, run
    return _measured(config)


def describe(config: ConfigDict) -> Description:
    """Raises UserError: there is no training step."""
    raise UserError(f"config.experiment={config.experiment!r}: trains nothing that could be described.")


def figures(session: ConfigDict, config: ConfigDict, run: Run, result: dict) -> list[Figure]:
    """Regret against budget."""
    del session
    unit = metric(read_table(Path(config.table)).metric).unit
    intervals = result.get("ci95", {}).get("regret", {})
    return [regret_figure(result["regret"], intervals, unit, run.subfolder("figures") / "regret.png")]


def tables(session: ConfigDict, config: ConfigDict, run: Run, result: dict) -> list[Table]:
    """Every method's regret at every budget, with its interval over repeats."""
    del session, run
    intervals = result.get("ci95", {}).get("regret", {})
    rows = [
        (name, *(Estimate(mean, *intervals.get(name, {}).get(budget, ())) for budget, mean in found.items()))
        for name, found in result["regret"].items()
    ]
    title = f"Regret after so many whole trainings, means over {len(config.seeds)} repeats"
    return [Table(title, ("method", *map(str, config.budgets)), rows)]


EXPERIMENT = Experiment(
    together=together,
    evaluate=evaluate,
    describe=describe,
    figures=figures,
    tables=tables,
    check=check,
    steps=lambda config: 1,
    metric=lambda config: "seconds",
)
