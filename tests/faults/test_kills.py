"""A run or sweep that is killed at a random moment goes on to what an unbroken one has."""

import os
import signal
import time

import pytest

from tests.faults import kills
from tests.faults.running import NAMES, differences

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", NAMES)
def test_a_kill_at_any_moment_is_survived(subjects, name):
    found = kills.tried(subjects, 1, seed=NAMES.index(name), names=(name,))
    assert found
    assert not [each for each in found if each.wrong]


def test_a_worker_that_is_killed_is_named_and_the_same_command_ends_the_sweep(subjects, tmp_path):
    name = "sweep processes"
    unbroken, _ = subjects.unbroken(name)
    before = subjects.processes()
    process = subjects.start(tmp_path / "sweep", *subjects.flags(name))
    while len(workers := {*subjects.processes()} - {*before, process.pid}) < 2:
        assert process.poll() is None
        time.sleep(0.05)
    os.kill(min(workers), signal.SIGKILL)
    assert "1 of 2 workers were killed; see" in process.communicate(timeout=300)[1]
    again = subjects.start(tmp_path / "sweep", *subjects.flags(name))
    said = again.communicate(timeout=300)[1]
    assert again.returncode == 0, said
    assert not differences(tmp_path / "sweep", unbroken)
