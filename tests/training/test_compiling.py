"""Programs are compiled in threads: ahead of their calls, in the order they were asked for, and a stop is heard."""

import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fitting import RULE, TABLE, TASK, TIMETABLE, batches, hyper

from attention_jax import stopping
from attention_jax.stopping import Interrupted
from attention_jax.training import compiling
from attention_jax.training.compiling import Programs, Rehearsals
from attention_jax.training.feeding import Batches
from attention_jax.training.loop import trainer

LONG = 60  # seconds that a test waits at most
X = jnp.arange(3.0)


class Held:
    """A function whose compilations are held until they are let go; `begun` are the threads that began one."""

    def __init__(self):
        self.begun, self.go = [], threading.Event()
        self.programs = Programs(lambda x: 2 * x, self._inspect)

    def _inspect(self, program):
        self.begun.append(threading.current_thread())
        assert self.go.wait(LONG)


@pytest.fixture
def held():
    found = Held()
    yield found
    found.go.set()


def until(holds):
    ends = time.monotonic() + LONG
    while not holds():
        assert time.monotonic() < ends
        time.sleep(0.01)


def test_programs_are_compiled_side_by_side_while_their_caller_goes_on(held):
    for key in range(compiling.SIDE_BY_SIDE):
        held.programs.prepare(key, X)
    until(lambda: len(set(held.begun)) == compiling.SIDE_BY_SIDE)
    assert threading.current_thread() not in held.begun
    assert len(held.programs) == 0


def test_a_program_that_was_prepared_from_shapes_is_called_without_waiting():
    programs = Programs(lambda x: 2 * x)
    programs.prepare("key", jax.ShapeDtypeStruct(X.shape, X.dtype))
    until(lambda: len(programs) == 1)
    assert programs.call("key", X).tolist() == [0, 2, 4]
    assert programs.seconds == 0


def test_what_is_forgotten_before_it_is_compiled_is_compiled_when_it_is_called(held):
    for key in range(compiling.SIDE_BY_SIDE):
        held.programs.prepare(key, X)
    until(lambda: len(held.begun) == compiling.SIDE_BY_SIDE)
    held.programs.prepare("late", X)
    held.programs.forget()
    held.go.set()
    until(lambda: len(held.programs) == compiling.SIDE_BY_SIDE)
    assert held.programs.call("late", X).tolist() == [0, 2, 4]
    assert len(held.begun) == compiling.SIDE_BY_SIDE + 1


def test_a_stop_while_a_program_is_compiled_is_noticed(held, monkeypatch):
    monkeypatch.setattr(stopping._Asked, "number", 15)
    monkeypatch.setattr(stopping._Asked, "is_noticed", False)
    with pytest.raises(Interrupted):
        held.programs.call("key", X)


def test_what_a_compilation_raises_is_raised_where_the_program_is_called():
    programs = Programs(lambda x: x.no_such_thing)
    programs.prepare("key", X)
    with pytest.raises(AttributeError, match="no_such_thing"):
        programs.call("key", X)


@pytest.mark.parametrize("how", ["loop", "vmap"])
@pytest.mark.parametrize("is_read", [False, True])
def test_training_calls_the_programs_that_were_prepared_for_it(how, is_read):
    task = TASK._replace(batches=read_batches) if is_read else TASK
    trained, seeds = trainer(task, TIMETABLE, RULE, how=how), (0, 1)
    hypers = [hyper(seed) for seed in seeds]
    with trained.compiling(hypers, 0, TIMETABLE.steps):
        states, mesh = trained.create(seeds), trained.population.mesh(len(seeds))
        until(lambda: len(trained.population.programs) == 1)
        tables, rows = zip(*(trained.feed(task.batches(seed, 0, 4), mesh) for seed in seeds), strict=True)
        traced = [{name: value for name, value in each.items() if name != "seed"} for each in hypers]
        packed = trained.population.advance(trained.population.pack(states), tables, rows, np.int32(4), traced)
    assert [int(state.step) for state in trained.population.unpack(packed)] == [4, 4]
    assert len(trained.population.programs) == 1
    assert trained.population.programs.seconds == 0


def read_batches(seed, step, stop):
    return Batches(
        batches(seed, step, stop).rows, read=lambda rows: {name: np.array(TABLE[name])[rows] for name in TABLE}
    )


def test_a_rehearsed_function_is_compiled_once_and_before_its_first_call():
    traced, rehearsals = [], Rehearsals()

    def double(x):
        traced.append(threading.current_thread())
        return 2 * x

    function = jax.jit(double)
    rehearsals.add(function, jax.ShapeDtypeStruct(X.shape, X.dtype))
    rehearsals.wait()
    assert len(traced) == 1
    assert function(X).tolist() == [0, 2, 4]
    assert len(traced) == 1
    assert threading.current_thread() not in traced


@pytest.mark.parametrize("is_rehearsed", [False, True])
def test_a_thread_has_the_precision_of_who_asks_it(is_rehearsed):
    seen, rehearsals = [], Rehearsals()

    def product(x):
        seen.append(jax.config.jax_default_matmul_precision)
        return x

    with jax.default_matmul_precision("highest"):
        if is_rehearsed:
            rehearsals.add(jax.jit(product), X)
        else:
            Programs(product).call("key", X)
    rehearsals.wait()
    assert seen == ["highest"]
