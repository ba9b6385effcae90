"""Which position encoding, and does it extrapolate? A language model, measured at and beyond the lengths it saw."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from attention_jax.data.parts import identify_text
from attention_jax.errors import UserError
from attention_jax.evaluation.extrapolation import area
from attention_jax.evaluation.metrics import metric
from attention_jax.evaluation.statistics import over_seeds
from attention_jax.models.language_model import LanguageModel
from attention_jax.modules.mixers import MIXERS
from attention_jax.ops.positions import require_room
from attention_jax.reports.extrapolation import attention_maps, length_curves
from attention_jax.reports.figures import Figure
from attention_jax.reports.page import Table
from attention_jax.runs.experiment import Description, Experiment, Together
from attention_jax.runs.folder import Run
from attention_jax.runs.training import best_variables, plan_of
from attention_jax.training.cost import flops
from attention_jax.training.loop import Task, trainer
from attention_jax.training.state import Variables
from experiments._algorithmic import open_algorithmic
from experiments._common import DYNAMIC, check_training, description_of, pace
from experiments._extrapolation import conclude, name_of, portrait
from experiments._language_model import Curves, Source, build, draw_positions, init, loss
from experiments._text import open_text

SOURCES: dict[str, Callable[[ConfigDict, Path | None], Source]] = {"algorithmic": open_algorithmic, "text": open_text}
LOOKED_AT = 1.5  # times the trained length: attention is kept at both


class Instruments(NamedTuple):
    """What looks at trained models, compiled once for all runs that share their shapes; and what training costs."""

    measure: Callable[[Variables, ConfigDict], Curves]
    attention: Callable[..., Any]
    cost: dict[str, float]


def open_source(config: ConfigDict, folder: Path | None) -> tuple[Source, LanguageModel]:
    """What the config trains on, and its model; without a folder, their shapes.

    Raises UserError for values that do not fit, or where the longest text has no room.
    """
    for name in ("length", "batch", "examples", "evaluated", "sampled"):
        if name in config.data and config.data[name] < 1:
            raise UserError(f"config.data.{name}={config.data[name]}: needs 1 or more.")
    factors = config.data.factors
    if not factors or round(min(factors) * config.data.length) < 1 or max(factors) < 1:
        raise UserError(f"config.data.factors={factors}: needs numbers more than 0, and one that is 1 or more.")
    if config.data.source not in SOURCES:
        raise UserError(f"config.data.source={config.data.source!r}: choose one of {', '.join(SOURCES)}.")
    source = SOURCES[config.data.source](config, folder)
    model = build(config, source.vocabulary)
    _require_room(config, model, source)
    return source, model


def as_measured(config: ConfigDict, source: Source, model: LanguageModel) -> LanguageModel:
    """The model with the encoding that it is measured with: `config.evaluate.positions`, or that of training if empty.

    Raises UserError where the two do not have the same parameters, or the longest text has no room.
    """
    name = config.evaluate.positions or model.positions
    try:
        measured = model.clone(positions=name)
    except ValueError as error:
        raise UserError(f"config.evaluate.positions: {error}") from None
    _require_room(config, measured, source)
    shapes = [jax.eval_shape(functools.partial(init, one), jax.random.key(0)) for one in (model, measured)]
    if jax.tree.map(jnp.shape, shapes[0]) != jax.tree.map(jnp.shape, shapes[1]):
        raise UserError(
            f"config.evaluate.positions={name!r} has other parameters than {model.positions!r}, which is trained: "
            "choose one that has the same."
        )
    return measured


def _require_room(config: ConfigDict, model: LanguageModel, source: Source) -> None:
    encoding = model.new_encoding()
    try:
        require_room(model.positions, encoding.record, encoding.sizes, source.places)
    except ValueError as error:
        raise UserError(f"config.data.factors={config.data.factors}, config.model.max_length: {error}") from None


def together(config: ConfigDict, folder: Path, how: str) -> Together:
    """What runs that differ in seed, task and optimizer share: a source and every program."""
    source, model = open_source(config, folder)
    measured = as_measured(config, source, model)
    attention = jax.jit(functools.partial(measured.apply, method="attention"))
    instruments = Instruments(source.measure(measured), attention, _cost(config, source, model))
    task = Task(
        init=functools.partial(init, model),
        loss=_loss(source, model),
        call=source.call,
        steps_per_epoch=source.steps_per_epoch,
        evaluate=lambda variables: {},
    )

    def finish(configs, runs):
        return [_finish(config, run, source, measured, instruments) for config, run in zip(configs, runs, strict=True)]

    return Together(finish, trainer(task, plan_of(config), how), traced=source.traced)


def evaluate(config: ConfigDict, run: Run) -> dict:
    """Measure a trained run again."""
    source, model = open_source(config, run.path / "data")
    measure = source.measure(as_measured(config, source, model))
    every = best_variables(config, run, functools.partial(init, model))
    return over_seeds([_measured(source, measure(variables, config)) for variables in every])


def describe(config: ConfigDict) -> Description:
    """Shapes of the parameters and of one step."""
    return _description(config, *open_source(config, None))


def check(config: ConfigDict) -> None:
    """Raise UserError for values that cannot be used."""
    check_training(config)
    as_measured(config, *open_source(config, None))


def figures(config: ConfigDict, run: Run, result: dict) -> list[Figure]:
    """The measures against length, and attention within and beyond the trained length."""
    folder, name = run.subfolder("figures"), name_of(config)
    source, _ = open_source(config, run.path / "data")
    intervals = result.get("ci95", {}).get("curves", {})
    curves = {}
    for measure, found in result["curves"].items():
        lengths, means = np.array([*map(int, found)]), np.array([*found.values()])
        ends = np.array([intervals.get(measure, {}).get(length, (mean, mean)) for length, mean in found.items()])
        ends = np.clip(ends, metric(measure).low, metric(measure).high)
        curves[measure] = {name: (lengths, means, *ends.T)}
    drawn = length_curves(curves, source.trained, folder / "extrapolation.png")
    with np.load(run.path / "attention.npz") as kept:
        maps = [attention_maps({name: dict(kept)}, folder / "attention.png")] if kept.files else []
    return [drawn, *maps]


def tables(config: ConfigDict, run: Run, result: dict) -> list[Table]:
    """The measures at every length."""
    del config, run
    curves = result["curves"]
    lengths = list(next(iter(curves.values())))
    rows = [(int(length), *(found[length] for found in curves.values())) for length in lengths]
    return [Table("By length", ("length", *curves), rows)]


def _finish(config: ConfigDict, run: Run, source: Source, model: LanguageModel, instruments: Instruments) -> dict:
    every = best_variables(config, run, functools.partial(init, model))
    logged = [run.mean_over_steps("train.loss", seed, after=config.train.steps - 1) for seed in config.seeds]
    found = [
        {"train": {"loss": last}, **_measured(source, instruments.measure(variables, config))}
        for last, variables in zip(logged, every, strict=True)
    ]
    _keep_attention(config, run, source, model, functools.partial(instruments.attention, every[0]))
    _keep_portrait(run, model, every[0])
    return over_seeds(found) | {"cost": instruments.cost | pace(run, config)}


def _measured(source: Source, curves: Curves) -> dict:
    """The curves, and the mean height of each from the trained length on."""
    beyond = [length for length in source.lengths if length >= source.trained]
    heights = {name: area(beyond, [curve[str(length)] for length in beyond]) for name, curve in curves.items()}
    return {"curves": curves, "area": heights}


def _keep_attention(config: ConfigDict, run: Run, source: Source, model: LanguageModel, attention: Callable) -> None:
    """The weights of every layer and head on one text at the trained length and one beyond, and its tokens."""
    kept: dict[str, np.ndarray] = {}
    lengths = () if config.model.mixer in MIXERS else (source.trained, round(LOOKED_AT * source.trained))
    for length in (length for length in lengths if length <= source.lengths[-1]):
        tokens = source.example(config, length)[:, :-1]
        positions = draw_positions(model, jax.random.key(0), *tokens.shape)
        kept[str(length)] = np.asarray(attention(tokens, positions)[0], np.float16)
    np.savez_compressed(run.path / "attention.npz", **kept)  # type: ignore[arg-type]


def _keep_portrait(run: Run, model: LanguageModel, variables: Variables) -> None:
    """What the encoding looks like, of the first layer where layers have their own."""
    encoding, params = model.new_encoding(), variables["params"]
    own = params.get("encoding") or params["layer_0"].get("encoding", {})
    np.savez_compressed(run.path / "encoding.npz", **portrait(encoding.record, encoding.sizes, own))  # type: ignore[arg-type]


def _loss(source: Source, model: LanguageModel):
    def training_loss(variables, batch, dropout, hyper):
        return loss(model, variables, source.texts(batch, hyper), dropout, hyper["label_smoothing"])

    return training_loss


def _description(config: ConfigDict, source: Source, model: LanguageModel) -> Description:
    table, rows = source.call(0, 0, 1)
    batch = jax.tree.map(lambda column: jax.ShapeDtypeStruct((rows.shape[1], *column.shape[1:]), column.dtype), table)
    return description_of(config, functools.partial(init, model), _loss(source, model), batch, source.traced(config))


def _cost(config: ConfigDict, source: Source, model: LanguageModel) -> dict:
    description = _description(config, source, model)
    total = flops(description.step, *description.arguments) * config.train.steps
    return {"parameters": sum(leaf.size for leaf in jax.tree.leaves(description.parameters)), "flops": total}


EXPERIMENT = Experiment(
    together=together,
    evaluate=evaluate,
    describe=describe,
    figures=figures,
    tables=tables,
    check=check,
    identify=lambda config: identify_text(config.data.path) if config.data.source == "text" else "",
    dynamic=(*DYNAMIC, "data.task"),
    flops=lambda config, folder: _cost(config, *open_source(config, folder))["flops"],
    conclude=conclude,
    metric=lambda config: "area.token_accuracy" if config.data.source == "algorithmic" else "area.perplexity",
)
