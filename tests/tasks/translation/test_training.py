"""What training asks to have compiled ahead is all that it then calls."""

import jax
import pytest

from attention_jax.runs.training import trainer_of
from attention_jax.tasks.translation.session import Session
from attention_jax.tasks.translation.training import measure_so_far, task_of
from attention_jax.training.compiling import Rehearsals
from configs.nmt import get_config

COMPILED = "/jax/core/compile/backend_compile_duration"
LARGE = ("evaluation_loss", "decode", "alignment")


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    config = get_config("bahdanau,embedded")
    config.model.kwargs.update(embedding=8, hidden=8, layers=1)
    return Session(config, tmp_path_factory.mktemp("session") / "data")


@pytest.fixture
def told():
    """The programs compiled so far, by name."""
    names = []

    def listen(event, duration_secs, **about):
        if event == COMPILED:
            names.append(str(about.get("fun_name", "")))

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield names
    jax.monitoring.unregister_event_duration_listener(listen)


def test_an_evaluation_that_was_rehearsed_compiles_no_program_of_its_own(session, told):
    trainer = trainer_of(session.config, task_of(session), "loop")
    rehearsals = Rehearsals()
    for function, *arguments in trainer.task.rehearsed(trainer.abstract(1)[0].variables):
        rehearsals.add(function, *arguments)
    rehearsals.wait()
    assert all(any(name in one for one in told) for name in LARGE)
    told.clear()
    measure_so_far(session, trainer.create([0])[0].variables)
    assert not [one for one in told if any(name in one for name in LARGE)]


def test_the_steps_of_an_epoch_meet_no_shape_that_was_not_told_ahead(session):
    task = task_of(session)
    ahead = [(batches.rows.shape[1], batches.table["source"].shape) for batches in task.ahead(0, task.steps_per_epoch)]
    met = [task.batches(0, step, step + 1) for step in range(task.steps_per_epoch)]
    assert ahead == list(dict.fromkeys((batches.rows.shape[1], batches.table["source"].shape) for batches in met))
