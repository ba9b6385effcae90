"""Searches in this process over a synthetic objective: nothing is trained."""

import json
import time

import numpy as np
from ml_collections import ConfigDict

from attention_jax.launcher.search import print_answer
from attention_jax.runs.experiment import Experiment, Request, Together
from attention_jax.sweeps.searching import search
from attention_jax.sweeps.settings import POPULATION, SEARCH, SWEEP
from attention_jax.sweeps.space import choice, log_uniform, uniform

SPACE = {"x": uniform(-1, 1), "rate": log_uniform(1e-4, 1e-1), "kind": choice(("a", "b"))}
NOISE = 0.3
RATES, DROPOUTS = [1e-4, 1e-3, 1e-2, 1e-1], [0.0, 0.25, 0.5]
SWEPT = {"experiment": "e", "seeds": [0], "precision": {}, "train": {"best_by": "validation.loss"}}


def value(config, seed):
    """A bowl with its bottom at x = 0.3, rate = 1e-2 and kind b, and noise that a setting and seed have for good."""
    noise = np.random.default_rng((seed, int(abs(config.x) * 1e9))).normal()
    return (config.x - 0.3) ** 2 + np.log10(config.rate / 1e-2) ** 2 + 0.5 * (config.kind == "a") + NOISE * noise + 2


class Killed(BaseException):
    """What ends a process."""


class Searched:
    """A search in a folder; `calls` are the cells that were measured together, and the one after `most` is killed."""

    def __init__(self, most=10**9, broken=()):
        self.calls, self.most, self.broken = [], most, broken

    def finish(self, configs, runs):
        if len(self.calls) == self.most:
            raise Killed
        self.calls.append([(config.x, config.seeds) for config in configs])
        if {*self.broken} & {config.seeds for config in configs}:
            raise ValueError("no such seed")
        return [{"validation": {"loss": value(config, config.seeds[0])}} for config in configs]

    @property
    def experiment(self):
        return Experiment(
            together=together_of(self.finish),
            evaluate=nothing,
            figures=nothing,
            tables=nothing,
            describe=nothing,
            steps=one_step,
            dynamic=("x", "rate"),
            metric=objective,
        )

    def search(self, path, space=None, **asked):
        config = config_of(**asked)
        request = Request(config, path, time.perf_counter(), False, search=lambda: space or SPACE)
        sweep = search(self.experiment, request._replace(configure=lambda variant: config))
        print_answer(sweep)
        return json.loads((path / "result.json").read_text())


def config_of(population=None, sweep=None, **asked):
    """The config of the objective; other keywords are of its section `search`."""
    own = {"trials": 6, "batch": 3, "choosing_seeds": 2, "sampler": "random"}
    return ConfigDict(
        {
            "experiment": "searched",
            "seeds": (0,),
            "x": 0.0,
            "rate": 1e-3,
            "kind": "a",
            "precision": {"matmul": "default"},
            "sweep": SWEEP | (sweep or {}),
            "population": POPULATION | (population or {}),
            "search": SEARCH | own | asked,
        }
    ).lock()


def together_of(finish):
    return lambda session, how: Together(finish)


def nothing(*asked):
    return []


def one_step(config):
    return 1


def objective(config):
    return "validation.loss"


def write_table(path, change=lambda cells: cells):
    """The folder of a finished sweep whose losses are rate × dropout + seed."""
    cells = [
        {"overrides": {"rate": rate, "dropout": dropout}, "seed": seed, "status": "finished",
         "learning": [[10, 9.0], [20, rate * dropout + seed]]}
        for rate in RATES for dropout in DROPOUTS for seed in (0, 1)
    ]  # fmt: skip
    path.mkdir()
    (path / "config.json").write_text(json.dumps(SWEPT))
    (path / "result.json").write_text(json.dumps({"status": "finished", "seeds": [0], "cells": change(cells)}))
    return path
