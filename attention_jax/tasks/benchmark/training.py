"""Training: target tokens a second of the project's steps and of PyTorch's, on the same rows; and of a step what its
matrix products take."""

import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from attention_jax.tasks.benchmark.cases import Learner, learner_of
from attention_jax.tasks.benchmark.pairs import write_pairs
from attention_jax.tasks.benchmark.peers import Asked
from attention_jax.tasks.benchmark.products import REPEATS, products, seconds_of
from attention_jax.tasks.benchmark.rounds import Row, in_turn
from attention_jax.tasks.benchmark.tools import Tools
from attention_jax.tasks.timing import least_seconds, median_rate
from attention_jax.training.blueprint import Blueprint
from attention_jax.training.compiling import unseen
from attention_jax.training.description import Description
from attention_jax.training.hyper import rule_of, settled, traced
from attention_jax.training.placement import MESH
from attention_jax.training.population import POPULATIONS
from attention_jax.training.state import TrainState
from attention_jax.training.step import PLAIN, train_step, train_steps

PEER_SIZES = {  # of our models' fields
    "recurrent": {"width": "hidden", "layers": "layers"},
    "transformer": {"width": "width", "layers": "encoder_layers", "heads": "heads", "feed_forward": "feed_forward"},
    "language_model": {"width": "width", "layers": "layers", "heads": "heads", "feed_forward": "feed_forward"},
}
PEER_MODELS = {"recurrent": "bahdanau", "transformer": "transformer", "language_model": "language_model"}
WAYS = {
    "PyTorch": {},
    "PyTorch, a thread": {"threads": 1},
    "PyTorch, compiled": {"compile": 1},
}


class Training(NamedTuple):
    """A model in training; `call(packed, rows)` takes as many steps as there are rows of batches, of all members."""

    call: Callable[[Any, np.ndarray], Any]
    create: Callable[[], Any]  # fresh members, packed; a call is given them for good
    step: Callable  # one step of one member, of (state, batch, hyper)
    blueprint: Blueprint
    hyper: dict[str, Any]
    learner: Learner

    def batch(self, rows: int) -> dict[str, jax.ShapeDtypeStruct]:
        """The shapes of a batch."""
        return {side: jax.ShapeDtypeStruct((rows, ids.shape[1]), ids.dtype) for side, ids in self.learner.table.items()}

    def shapes(self, rows: int) -> tuple[TrainState, dict, dict]:
        """What `step` is called with."""
        return self.blueprint.shapes(), self.batch(rows), self.hyper


def measure(config: ConfigDict, tools: Tools) -> Iterator[Row]:
    """Tokens a second of every case of `config.train.cases`; of those `timed_alone`, a step beside its products."""
    for name, case in config.train.cases.items():
        training = prepare(case, config.optimizer)
        path = write_pairs(tools.folder / f"{name}.npz", training.learner.table, case.vocabulary)
        rates = functools.partial(median_rate, Rounds(training, case).advance, config.seconds)
        with tools.peers.running(peers_of(config, case, path, WAYS)) as running:
            versions = {peer.ask()["version"] for peer in running.values()}  # what is compiled is compiled now
            others = {name: functools.partial(rate_of, peer) for name, peer in running.items()}
            rates()
            ours, theirs = in_turn(config.rounds, rates, others)
        yield Row("train", f"{name}: {case.what}", "target tokens/s", ours, theirs, ", ".join(versions))
        if name in config.train.timed_alone:
            yield share_of_products(name, case, training, config.rounds)


def prepare(case: ConfigDict, optimizer: ConfigDict, how: str = "loop", members: int = 1) -> Training:
    """The model of a case in training; `how` is a key of POPULATIONS."""
    learner = learner_of(case)
    rule, hyper = rule_of(optimizer), {"key": jax.random.key(0), **traced(settled(optimizer))}
    population = POPULATIONS[how](functools.partial(train_steps, learner.loss, rule, PLAIN), MESH, unseen)
    blueprint = Blueprint(learner.init, rule.optimizer, learner.placement)
    table = jax.device_put(learner.table)

    def create():
        return population.pack(blueprint.create(range(members), population.mesh(members)))

    def call(packed, rows):
        each = [table] * members, [rows] * members, np.int32(len(rows)), [hyper] * members
        packed = population.advance(packed, *each)
        population.look(packed)
        return packed

    return Training(call, create, functools.partial(train_step, learner.loss, rule, PLAIN), blueprint, hyper, learner)


def describe_step(config: ConfigDict) -> Description:
    """The training step of the last of the cases."""
    *_, case = config.train.cases.values()
    training = prepare(case, config.optimizer)
    shapes = training.shapes(case.batch)
    return Description(shapes[0].variables["params"], training.step, shapes)


class Rounds:
    """Training that goes on from round to round; batches are drawn anew each epoch."""

    def __init__(self, training: Training, case: ConfigDict):
        self.call, self.packed, self.target = training.call, training.create(), training.learner.table["target"]
        self.batch, self.per_call, self._rng = case.batch, case.steps_per_call, np.random.default_rng(0)

    def advance(self) -> int:
        """One call; the target tokens that it read."""
        drawn = [self._rng.permutation(len(self.target))[: self.batch] for _ in range(self.per_call)]
        rows = np.array(drawn, np.int32)
        self.packed = self.call(self.packed, rows)
        return int(np.count_nonzero(self.target[rows]))


def share_of_products(name: str, case: ConfigDict, training: Training, rounds: int) -> Row:
    """Seconds of a step, and of its matrix products, each alone: the least of some calls in a row."""
    counts = products(training.step, *training.shapes(case.batch))
    going = Rounds(training, case)

    def step() -> float:
        return least_seconds(going.advance, repeats=REPEATS) / case.steps_per_call

    alone = functools.partial(seconds_of, counts)
    for warm_up in (step, alone):
        warm_up()
    ours, others = in_turn(rounds, step, {"its products, each alone": alone})
    return Row("train", f"{name}: a step", "s", ours, others)


def peers_of(config: ConfigDict, case: ConfigDict, path: Path, ways: Mapping[str, Mapping]) -> dict[str, Asked]:
    """PyTorch in several ways, flags of its script by name, with the sizes of the case."""
    kwargs, optimizer = case.model.kwargs, config.optimizer
    sizes = {flag: kwargs[field] for flag, field in PEER_SIZES[case.model.name].items()}
    numbers = {"rate": optimizer.dropout, "learning_rate": optimizer.learning_rate, "seconds": config.seconds}
    flags = {"batches": path, "model": PEER_MODELS[case.model.name], "batch": case.batch, **sizes, **numbers}
    flags["sites"] = ",".join(kwargs.dropout_sites)
    return {name: Asked("torch_train.py", "torch", {**flags, **way}) for name, way in ways.items()}


def rate_of(peer: Any) -> float:
    """Target tokens a second of one measurement."""
    return peer.ask()["tokens_per_second"]
