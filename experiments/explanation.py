"""Is attention explanation? Finished translation runs, all their seeds, against true alignments and one another."""

import dataclasses
import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

import attention_jax
from attention_jax.errors import UserError
from attention_jax.evaluation.statistics import over_seeds
from attention_jax.files import read_arrays
from attention_jax.ops.naming import parse
from attention_jax.reports.explanation import adversary_figure, map_figure, measure_figure, result_tables
from attention_jax.reports.figures import Figure
from attention_jax.reports.page import Table
from attention_jax.runs.config import flatten
from attention_jax.runs.experiment import Experiment, Together
from attention_jax.runs.folder import Run
from attention_jax.stores import here
from attention_jax.tasks.explanation.importance import gradients
from attention_jax.tasks.explanation.keeping import MAPS, kept_maps, write_maps
from attention_jax.tasks.explanation.measuring import explain, programs_of
from attention_jax.tasks.explanation.sample import sample_of
from attention_jax.tasks.translation.opened import OpenedTranslator
from attention_jax.training.description import Description
from attention_jax.training.progress import tell

SIGNED = ("talking", "differential")  # families whose weights may be below 0


def check(config: ConfigDict) -> None:
    """Raise UserError for values that cannot be used."""
    for name in ("sentences", "draws", "steps"):
        if config[name] < 1:
            raise UserError(f"config.{name}={config[name]}: needs 1 or more.")
    if config.learning_rate <= 0:
        raise UserError(f"config.learning_rate={config.learning_rate}: needs more than 0.")
    if not config.epsilons or not all(0 < epsilon <= 1 for epsilon in config.epsilons):
        raise UserError(f"config.epsilons={config.epsilons}: needs numbers more than 0, each 1 or less.")
    folders(config)


def folders(config: ConfigDict) -> dict[str, Path]:
    """The runs' folders by their names. Raises UserError where there are none, or two of one name."""
    names = [name for name in config.runs.split(",") if name]
    if not names:
        raise UserError(
            "config.runs='': name the folders of finished translation runs: --config.runs=runs/a,runs/b. "
            "--config=configs/nmt.py:bahdanau,embedded makes one."
        )
    found = {Path(name).name: here(name) for name in names}
    if len(found) < len(names):
        raise UserError(f"config.runs={config.runs!r}: two folders of one name; a model is called by its folder's.")
    return found


def opened_of(folder: Path) -> OpenedTranslator:
    """A finished run. Raises UserError for one that is not finished, that does not translate or does not attend."""
    opened = attention_jax.load(folder)
    if not isinstance(opened, OpenedTranslator) or "cross" not in opened.sizes:
        raise UserError(f"{folder}: has no attention to a source. Name runs of configs/nmt.py with models that attend.")
    if opened.result is None:
        raise UserError(f"{folder}: not finished. Go on with --mode=train.")
    kwargs = opened.config.model.kwargs
    for key in (key for key in kwargs if key.endswith("family") and parse(kwargs[key])[0] in SIGNED):
        raise UserError(f"{folder}: config.model.kwargs.{key}={kwargs[key]!r} has weights below 0, no distribution.")
    return opened


def together(config: ConfigDict, how: str) -> Together:
    """Nothing is trained: a run is its measurements."""
    del how
    check(config)
    return Together(lambda configs, runs: [measure(*one) for one in zip(configs, runs, strict=True)])


def measure(config: ConfigDict, run: Run) -> dict:
    """Every number of every model, with intervals over its seeds, and the code that trained it.

    The first seed's maps are kept.
    """
    models, maps, trained = {}, {}, {}
    for name, folder in folders(config).items():
        opened = opened_of(folder)
        programs, sample = programs_of(opened, config), sample_of(opened, config.split, config.sentences)
        found = []
        for seed in opened.config.seeds:
            of_seed = dataclasses.replace(opened, seed=seed)
            numbers, drawn = explain(programs, of_seed.variables, sample, config)
            found.append(numbers)
            tell(f"{name}, seed {seed}: measured")
            if seed == opened.seed:
                maps[name] = kept_maps(drawn, opened, sample)
        models[name] = {**over_seeds(found), "seeds": list(opened.config.seeds)}
        trained[name] = {"code": (opened.result or {}).get("code", {})}
    write_maps(run.own / MAPS, maps)
    return {"models": models, "of_runs": trained}


def evaluate(session: ConfigDict, config: ConfigDict, run: Run) -> dict:
    """Measure again."""
    del session
    return measure(config, run)


def describe(config: ConfigDict) -> Description:
    """The gradients of one sentence by the first run's model."""
    opened = opened_of(next(iter(folders(config).values())))
    variables = jax.eval_shape(opened.session.init, jax.random.key(0))
    tokens = jax.ShapeDtypeStruct((1, opened.config.data.buckets[-1]), jnp.int32)
    batch = {"source": tokens, "target": tokens}
    return Description(variables["params"], functools.partial(gradients, opened.model), (variables, batch))


def identify(config: ConfigDict) -> str:
    """What tells the runs from others in the same folders."""
    results = [folder / "result.json" for folder in folders(config).values()]
    return " ".join(hashlib.sha256(path.read_bytes()).hexdigest() for path in results if path.exists())


def figures(session: ConfigDict, config: ConfigDict, run: Run, result: dict) -> list[Figure]:
    """Agreement with the truth and with one another; how far the adversary goes; the maps of one sentence."""
    del session
    folder, found = run.subfolder("figures"), _flat(result)
    return [
        measure_figure(found, folder / "measures.png"),
        adversary_figure(found, config.epsilons, folder / "adversary.png"),
        map_figure(read_arrays(run.own / MAPS), folder / "maps.png"),
    ]


def tables(session: ConfigDict, config: ConfigDict, run: Run, result: dict) -> list[Table]:
    """Alignment, rank correlations, other weights, adversarial weights."""
    del session, run
    return result_tables(_flat(result), config.epsilons)


def _flat(result: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: flatten(found) for name, found in result["models"].items()}


def _metric(config: ConfigDict) -> str:
    return f"models.{next(iter(folders(config)))}.alignment.attention.alignment_error_rate"


EXPERIMENT = Experiment(
    together=together,
    evaluate=evaluate,
    describe=describe,
    figures=figures,
    tables=tables,
    check=check,
    identify=identify,
    steps=lambda config: 1,
    metric=_metric,
)
