"""A study: which settings to try next, asked for in batches and told in batches. The only file that knows Optuna.

What is asked for follows from the seed, the space and all that was told before, in its order: a study that is told the
same again asks for the same.
"""

import importlib.metadata
import importlib.util
import math
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from attention_jax.errors import UserError, require
from attention_jax.sweeps.space import Choice, Draw, Overrides

# Each of Optuna and a seed.
SAMPLERS: dict[str, Callable[[Any, int], Any]] = {
    "tpe": lambda optuna, seed: optuna.samplers.TPESampler(seed=seed),  # Bergstra et al. 2011
    "random": lambda optuna, seed: optuna.samplers.RandomSampler(seed=seed),
    "qmc": lambda optuna, seed: optuna.samplers.QMCSampler(
        seed=seed,
        scramble=True,
        independent_sampler=optuna.samplers.RandomSampler(seed=seed),
        warn_independent_sampling=False,
    ),
    "gp": lambda optuna, seed: optuna.samplers.GPSampler(seed=seed),  # a Gaussian process
}
PASSING_OVER = {"gp"}  # samplers that learn of values alone, and would ask again and again for what diverged
# Each of Optuna; a step is the number of an evaluation, from 1.
PRUNERS: dict[str, Callable[[Any], Any]] = {
    "none": lambda optuna: optuna.pruners.NopPruner(),
    "median": lambda optuna: optuna.pruners.MedianPruner(),  # of the trials that finished
    "halving": lambda optuna: optuna.pruners.SuccessiveHalvingPruner(min_resource=1),  # asynchronous: Li et al. 2020
}


class Study:
    """Settings of a space that are asked for, each by its number, and what was told of them."""

    def __init__(self, space: Mapping[str, Draw], sampler: str, pruner: str, seed: int, more_is_better: bool):
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._space = space
        self._distributions = {key: _distribution(optuna, draw) for key, draw in space.items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # of qmc, since 2022
            made = SAMPLERS[sampler](optuna, seed)
        towards = optuna.study.StudyDirection
        direction = towards.MAXIMIZE if more_is_better else towards.MINIMIZE
        self._study = optuna.create_study(direction=direction, sampler=made, pruner=PRUNERS[pruner](optuna))
        self._passes_over, self._worst_of = sampler in PASSING_OVER, min if more_is_better else max
        self._values: list[float] = []  # of the trials that came to one
        self._pruned = optuna.trial.TrialState.PRUNED
        self._trials: list[Any] = []
        self._decided: dict[tuple[int, int], bool] = {}  # by trial and step: a pruner that is asked twice counts twice

    def ask(self, count: int) -> list[Overrides]:
        """The next `count` settings, none of which waits for what is told of another."""
        first = len(self._trials)
        self._trials += [self._study.ask(self._distributions) for _ in range(count)]
        return [self._overrides(trial) for trial in self._trials[first:]]

    def prunes(self, number: int, step: int, value: float) -> bool:
        """Whether to drop a trial that has a value at a step; NaN where it diverged. The first answer stays."""
        if math.isnan(value):
            return True
        if (number, step) not in self._decided:
            self._trials[number].report(value, step)
            self._decided[number, step] = self._trials[number].should_prune()
        return self._decided[number, step]

    def tell(self, number: int, value: float | None) -> None:
        """What a trial came to; None where it was dropped or diverged."""
        trial = self._trials[number]
        if value is not None and math.isfinite(value):
            self._study.tell(trial, value)
            self._values.append(value)
            return
        self._study.tell(trial, state=self._pruned)
        if self._passes_over and self._values:
            self._tell_worst(trial)

    def _tell_worst(self, trial: Any) -> None:
        """Add a trial of the same settings with the worst value so far, and without steps, by which pruners judge."""
        from optuna.trial import create_trial

        worst = self._worst_of(self._values)
        self._study.add_trial(create_trial(params=trial.params, distributions=self._distributions, value=worst))

    def _overrides(self, trial: Any) -> Overrides:
        found = {}
        for key, draw in self._space.items():
            value = trial.params[key]
            found[key] = draw.values[value] if isinstance(draw, Choice) else value
        return found


def require_known(sampler: str, pruner: str) -> None:
    """Raise UserError for a sampler or pruner that there is not, or whose package is not installed."""
    for key, name, known in (("sampler", sampler, SAMPLERS), ("pruner", pruner, PRUNERS)):
        if name not in known:
            raise UserError(f"config.search.{key}={name!r}: choose one of {', '.join(map(repr, known))}.")
    require("optuna")
    if sampler == "gp" and importlib.util.find_spec("torch") is None:
        raise UserError("config.search.sampler='gp': needs PyTorch, which is not installed: pip install torch.")


def versions(sampler: str) -> dict[str, str | None]:
    """The versions of the packages that ask, None of one that is not installed; others may ask for other settings."""
    names = ("optuna", "torch", "greenlet") if sampler == "gp" else ("optuna",)
    return {name: _version(name) for name in names}


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _distribution(optuna: Any, draw: Draw) -> Any:
    """What Optuna calls a draw; of a choice the number of the value, which may be of any type."""
    if isinstance(draw, Choice):
        return optuna.distributions.CategoricalDistribution(range(len(draw.values)))
    return optuna.distributions.FloatDistribution(draw.low, draw.high, log=draw.log)
