"""A finished run gains seeds: it is the one run or the other whenever it is killed, and says what made each part."""

import itertools
import json
import os
import shutil
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict
from sweeper import Sweeper, train

from attention_jax.errors import UserError
from attention_jax.evaluation.statistics import over_seeds
from attention_jax.launcher import modes
from attention_jax.ops.losses import squared_error
from attention_jax.runs import gaining
from attention_jax.runs.experiment import Experiment, Request, Together
from attention_jax.runs.folder import read_config
from attention_jax.runs.training import trainer_of
from attention_jax.training.feeding import Batches
from attention_jax.training.loop import Task
from attention_jax.training.placement import MESH
from attention_jax.training.saved import best_variables
from configs import nmt

X = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
Y = X @ np.array([[1.0], [-2.0], [0.5]], np.float32)
TABLE = {"x": X, "y": Y}
TRAIN = {
    **{"steps": 4, "steps_per_call": 4, "log_every": 4, "evaluate_every": 4, "checkpoint_every": 4, "keep_last": 1},
    **{"accumulate": 1, "ema": 0.0, "skip_nonfinite": 0, "checkpoint_minutes": 0},
    "best_by": "validation.loss",
}
TASK = Task(
    init=lambda key: {"params": {"w": jax.random.normal(key, (3, 1))}},
    loss=lambda variables, batch, dropout, hyper: (
        squared_error(batch["x"] @ variables["params"]["w"], batch["y"]),
        {},
    ),
    batches=lambda seed, step, stop: Batches(
        np.stack([np.random.default_rng((seed, at)).integers(0, 40, 8) for at in range(step, stop)]), TABLE
    ),
    steps_per_epoch=10,
    evaluate=lambda variables: {"validation.loss": float(jnp.mean((X @ variables["params"]["w"] - Y) ** 2))},
)


def config_of(*seeds):
    config = {"experiment": "tiny", "seeds": seeds, "precision": {"matmul": "default"}, "train": TRAIN, "mesh": MESH}
    return ConfigDict({**config, "optimizer": {**nmt.get_config().optimizer.to_dict(), "warmup_steps": 0}}).lock()


def toy(is_trained):
    """An experiment of a few numbers, whose files tell of which seeds they are."""
    shared = trainer_of(config_of(0), TASK, "loop") if is_trained else None

    def finish(configs, runs):
        (config,), (run,) = configs, runs
        if is_trained:
            variables = best_variables(config, run.path, TASK.init)
            found = [{"loss": float(one["params"]["w"][0, 0])} for one in variables]
        else:
            found = [{"loss": float(seed)} for seed in config.seeds]
            for name in ("checkpoints/4/state", "checkpoints/4/about.json", "tensorboard/events"):
                (run.path / name).parent.mkdir(parents=True, exist_ok=True)
                (run.path / name).write_text(str(config.seeds))
        (run.path / "predictions.test.txt").write_text(str(config.seeds))
        return [over_seeds([{"validation": one} for one in found])]

    return Experiment(
        together=lambda session, how: Together(finish, shared),
        evaluate=lambda session, config, run: {},
        figures=lambda *asked: [],
        tables=lambda *asked: [],
        describe=lambda config: None,
    )


def launch(experiment, path, *seeds):
    """`--mode=train`; the line that it is refused with, or ""."""
    try:
        modes.MODES["train"](experiment, Request(config_of(*seeds), path, time.perf_counter(), False))
    except UserError as error:
        return str(error)
    return ""


class Kill(BaseException):
    """What a process does not outlive."""


class Killed:
    """A process that changes so many files and folders and no more."""

    def __init__(self, monkeypatch, last):
        self._left, self._thread = last, threading.get_ident()
        for name in ("replace", "rename", "mkdir", "unlink", "rmdir"):
            monkeypatch.setattr(os, name, self._counted(getattr(os, name)))
        monkeypatch.setattr(shutil, "rmtree", self._rmtree)

    def _counted(self, function):
        def called(*arguments, **options):
            if threading.get_ident() == self._thread:
                if not self._left:
                    raise Kill
                self._left -= 1
            return function(*arguments, **options)

        return called

    def _rmtree(self, path, **options):
        """One file after another, each of which a kill may leave."""
        for root, folders, files in os.walk(path, topdown=False):
            for file in sorted(files):
                os.unlink(os.path.join(root, file))
            for folder in sorted(folders):
                os.rmdir(os.path.join(root, folder))
        if os.path.exists(path):
            os.rmdir(path)


def seeds_of(path):
    """The seeds that a run is of: each of its parts is of the same."""
    seeds = read_config(path).seeds
    result = json.loads((path / "result.json").read_text())
    assert tuple(result["seeds"]) == seeds
    assert (path / "predictions.test.txt").read_text() == str(seeds)
    assert len(result.get("members", [result])) == len(seeds)
    for state in path.glob("checkpoints/4/state"):
        assert state.read_text() == str(seeds)
    return seeds


def numbers_of(path):
    """Every seed's number."""
    result = json.loads((path / "result.json").read_text())
    return [one["validation"]["loss"] for one in result.get("members", [result])]


def is_killed(experiment, path, last):
    """Gain a seed, killed before the given change of a file; whether there was such a change."""
    with pytest.MonkeyPatch.context() as patched:
        Killed(patched, last)
        try:
            return bool(launch(experiment, path, 0, 1))
        except Kill:
            return True


def check_kills(experiment, folder, others, every=1):
    """Kill a run at every moment of gaining a seed, and ask for each of several things then; how many moments.

    Where it is killed at every third moment, say, one of the things is asked for then, in turn.
    """
    whole, things = {}, ((0, 1), *others)
    for seeds in {(0,), *things}:
        assert launch(experiment, folder / repr(seeds), *seeds) == ""
        whole[seeds] = numbers_of(folder / repr(seeds))
    for turn, last in enumerate(itertools.count(step=every)):
        killed = shutil.copytree(folder / "(0,)", folder / f"killed {last}")
        if not is_killed(experiment, killed, last):
            return last
        read = shutil.copytree(killed, folder / f"{last} read")
        now = seeds_of(read)  # who only reads it finds the one run or the other
        assert numbers_of(read) == whole[now]
        for seeds in [things[turn % len(things)]] if every > 1 else things:
            run = shutil.copytree(killed, folder / f"{last} {seeds}")
            refusal = launch(experiment, run, *seeds)
            now = seeds_of(run)
            assert now == ((0, 1) if refusal else seeds)
            assert numbers_of(run) == whole[now]
            assert not refusal or (seeds != (0, 1) and "holds a run of another config (config.seeds: " in refusal)
            assert launch(experiment, run, *now) == ""  # it stays what it is
            assert not (run / "more" / "joined" / "result.json").exists()
            assert not (run / "removed-more").exists()


@pytest.fixture(autouse=True)
def unflushed(monkeypatch):
    """Files stay in memory, which makes hundreds of runs bearable."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def test_a_run_that_nothing_is_trained_for_survives_a_kill_at_every_moment_of_gaining_seeds(tmp_path):
    assert check_kills(toy(False), tmp_path, [(0,), (0, 5), (0, 1, 2)]) > 20


@pytest.mark.slow
def test_a_trained_run_survives_a_kill_at_every_seventh_moment_of_gaining_seeds(tmp_path):
    assert check_kills(toy(True), tmp_path, [(0, 5)], every=7) > 50


def test_seeds_of_other_code_are_told_of_and_the_result_says_what_made_each(tmp_path, capsys):
    experiment, path = toy(False), tmp_path / "run"
    launch(experiment, path, 0)
    launch(experiment, path, 0, 1)
    result = json.loads((path / "result.json").read_text())
    assert "other code" not in capsys.readouterr().err
    assert set(result["code"]) == {"commit", "changed", "version"}  # one, which made both
    old = {
        "code": {"commit": "abc1234", "changed": True, "version": "0" * 12},
        "device": "an abacus",
        "versions": {"jax": "0.0.1"},
    }
    (path / "result.json").write_text(json.dumps(result | old))
    launch(experiment, path, 0, 1, 2)
    told = f"its seeds (0, 1) were made by other code; which files have changed since is not known ({'0' * 12} there, "
    assert told in capsys.readouterr().err
    joined = json.loads((path / "result.json").read_text())
    for key, value in old.items():
        assert joined[key] == [value, result[key]]
    page = (path / "report.html").read_text()
    assert "an abacus" in page
    assert "commit abc1234 and changes" in page
    assert "jax 0.0.1" in page
    launch(experiment, path, 0, 1, 2, 3)
    assert json.loads((path / "result.json").read_text())["code"] == joined["code"]


def test_seeds_that_were_begun_go_on_elsewhere_and_say_what_trained_them_before(tmp_path, monkeypatch, capsys):
    experiment, path, made_now = toy(True), tmp_path / "run", modes._made_now

    def join(*asked):
        raise Kill

    def launch_on(device, *seeds, **mesh):
        monkeypatch.setattr(modes, "_made_now", lambda *asked: made_now(*asked) | {"device": device})
        config = ConfigDict(config_of(*seeds).to_dict())
        config.mesh.update(mesh)
        modes.MODES["train"](experiment, Request(config.lock(), path, time.perf_counter(), False))

    launch_on("first", 0)
    with monkeypatch.context() as patched:
        patched.setattr(gaining, "_join", join)
        with pytest.raises(Kill):
            launch_on("second", 0, 1)
    launch_on("third", 0, 1, data=1, fsdp=-1)
    assert "given up" not in capsys.readouterr().err
    assert json.loads((path / "result.json").read_text())["device"] == ["first", "second", "third"]


@pytest.fixture
def start(tmp_path):
    sweeper = Sweeper(tmp_path)

    def start_with(*seeds, debug_nans=False):
        config = sweeper.config(seeds=seeds, train__steps=6, train__evaluate_every=6)
        train(config, tmp_path / "run", debug_nans=debug_nans)

    return start_with


@pytest.mark.slow
def test_a_nan_of_a_seed_that_joins_is_named_by_that_seed(start, monkeypatch):
    start(0)
    named, original = [], modes.watched

    def recorded(trainer, seeds):
        watching = original(trainer, seeds)

        def advance(packed, *arguments):
            named.append((len(packed), tuple(seeds)))
            return watching.population.advance(packed, *arguments)

        return watching._replace(population=watching.population._replace(advance=advance))

    monkeypatch.setattr(modes, "watched", recorded)
    start(0, 5, 7, debug_nans=True)
    assert set(named) == {(2, (5, 7))}
