"""A process that is asked to stop ends in time, well and without leaving half of anything, whatever it is at."""

from types import SimpleNamespace
from unittest import mock

import pytest

from attention_jax.data.digests import import_once
from attention_jax.stopping import Interrupted, polled
from attention_jax.sweeps import working
from tests.faults import stops


@pytest.mark.slow
@pytest.mark.parametrize("number", range(2))
def test_a_stop_is_heard_whatever_a_process_is_at(subjects, number):
    own = stops.CASES[number::6]  # of which `make faults` takes all, with every signal
    found = stops.tried(subjects, own, (stops.SIGNALS[number],))
    assert not [one for one in found if one.wrong]
    assert len(found) >= 0.7 * len(own)  # the shortest phases end before they are seen


@pytest.mark.slow
def test_workers_end_with_the_process_that_awaits_them(subjects):
    found = stops.tried(subjects, [stops.CASES[-1]], ("SIGHUP", "SIGUSR2", "SIGINT"))
    assert len(found) == 3
    assert not [one for one in found if one.wrong]


def test_a_stop_while_a_cell_is_measured_is_no_failure_of_the_cell():
    stopped = SimpleNamespace(trainer=None, finish=mock.Mock(side_effect=Interrupted))
    with pytest.raises(Interrupted):
        working._finish(None, stopped, [(None, None)], None)


def test_an_import_that_is_stopped_leaves_nothing(tmp_path):
    def write(folder):
        with open(folder / "lines", "w", encoding="utf-8") as file:
            file.writelines(polled(["a\n", "b\n"]))

    asked = mock.patch("attention_jax.stopping.poll_alone", side_effect=[None, Interrupted])
    with asked, pytest.raises(Interrupted):
        import_once(tmp_path / "data", write)
    assert not list(tmp_path.iterdir())
