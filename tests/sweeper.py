"""Sweeps in this process, over a tiny corpus of their own."""

import csv
import json
import time

from ml_collections import ConfigDict

from attention_jax.data.grammar import sentence_pairs
from attention_jax.launcher import experiments
from attention_jax.launcher.modes import MODES
from attention_jax.runs.experiment import Experiment, Request
from attention_jax.sweeps.folder import Sweep, open_sweep, read_result
from attention_jax.sweeps.plan import Plan, PlannedCell, Program
from attention_jax.sweeps.planning import make_plan
from attention_jax.sweeps.settings import POPULATION, SWEEP
from attention_jax.sweeps.space import grid, product, seeds
from configs import nmt

TINY = {
    "data.min_count": 1,
    "data.validation": 5,
    "data.test": 5,
    "data.max_length": 12,
    "data.buckets": (12,),
    "data.batch_tokens": 96,
    "optimizer.warmup_steps": 4,
    "train.steps": 24,
    "train.steps_per_call": 4,
    "train.log_every": 6,
    "train.evaluate_every": 12,
    "train.checkpoint_every": 6,
    "train.best_by": "validation.loss",
}
SMALL = {
    "bahdanau": {"model.kwargs.embedding": 8, "model.kwargs.hidden": 8, "model.kwargs.layers": 1},
    "transformer_book": {
        "model.kwargs.encoder_layers": 1,
        "model.kwargs.decoder_layers": 1,
        "model.kwargs.width": 8,
        "model.kwargs.feed_forward": 8,
        "model.kwargs.heads": 2,
        "model.kwargs.kv_heads": 2,
    },
}
RATES = product(grid("optimizer.learning_rate", (1e-2, 3e-3)), seeds(2))


class Sweeper:
    """`--mode=sweep` in this process, over a tiny corpus of its own or another's."""

    def __init__(self, folder, pairs=None):
        self.folder = folder
        self.pairs = pairs or folder / "pairs.txt"
        if pairs is None:
            lines = (f"{pair.source}\t{pair.target}\n" for pair in sentence_pairs(1, 40))
            self.pairs.write_text("".join(lines), encoding="utf-8")

    def config(self, model="bahdanau", **overrides):
        config = nmt.get_config(f"{model},tsv")
        values = {**TINY, **SMALL[model], "data.path": str(self.pairs)}
        values |= {name.replace("__", "."): value for name, value in overrides.items()}
        config.update_from_flattened_dict(values)
        return config.lock()

    def run(self, space, workdir="sweep", mode="sweep", config=None, **overrides):
        config = self.config(**overrides) if config is None else config
        request = Request(config, self.folder / workdir, time.perf_counter(), False)
        request = request._replace(space=lambda: space, configure=lambda variant: config)
        MODES[mode](experiments.load(config.experiment), request)

    def plan(self, space, workdir="sweep", **overrides):
        """The sweep, planned and not run."""
        config = self.config(**overrides)
        request = Request(config, self.folder / workdir, time.perf_counter(), False)
        request = request._replace(space=lambda: space, configure=lambda variant: config)
        return make_plan(experiments.load(config.experiment), request)

    def alone(self, config):
        path = self.folder / "alone"
        train(config, path)
        return path

    def results(self, workdir="sweep"):
        """Each cell's result by its overrides."""
        sweep = open_sweep(experiments.load("nmt"), self.folder / workdir)
        return {repr(cell.overrides): read_result(sweep.cell(name)) for name, cell in sweep.plan.cells.items()}

    def cells(self, workdir="sweep"):
        return sorted((self.folder / workdir / "cells").iterdir())

    def table(self, workdir="sweep"):
        """The table of settings."""
        return rows_of(self.folder / workdir / "table.csv")


def rows_of(path):
    """The rows of a CSV file by its columns."""
    with open(path, encoding="utf-8") as file:
        return list(csv.DictReader(file))


def train(config, path, **asked):
    """`--mode=train` in this process."""
    request = Request(config, path, time.perf_counter(), False)._replace(**asked)
    MODES["train"](experiments.load(config.experiment), request)


def sweep_of(
    folder, values, *, population=None, within=(), metric="validation.loss", best_by="validation.loss", steps=30
):
    """A sweep whose cells are done: values are {setting: {seed: value, or what became of it}}."""
    planned, results = {}, {}
    for setting, by_seed in values.items():
        overrides = setting if isinstance(setting, tuple) else (("optimizer.learning_rate", setting),)
        for seed, value in by_seed.items():
            name = f"{len(planned):012d}-code"
            planned[name] = PlannedCell(dict(overrides) | {"seeds": (seed,)}, dict(overrides) | {"seeds": (seed,)})
            results[name] = value
    config = ConfigDict(
        {
            "experiment": "e",
            "seeds": (0,),
            "train": {"best_by": best_by},
            "precision": {},
            "sweep": SWEEP | {"metric": metric, "within": within},
            "population": POPULATION | (population or {}),
        }
    )
    experiment = Experiment(*[lambda *a: None] * 5)
    program = Program("program", {"experiment": "e", "train.steps": steps}, "loop", [list(planned)])
    sweep = Sweep(folder, experiment, config.lock(), Plan("code", planned, [program]))
    for name, value in results.items():
        path = sweep.cell(name)
        path.mkdir(parents=True)
        split, _, measure = metric.partition(".")
        ended = {"status": value} if isinstance(value, str) else {"status": "finished", split: {measure: value}}
        (path / "result.json").write_text(json.dumps(ended | {"seeds": list(planned[name].overrides["seeds"])}))
    return sweep
