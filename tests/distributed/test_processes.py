"""Several processes of one run: the same losses as one, and none waits for one that is gone."""

import signal
import time

import numpy as np
import pytest

from tests.distributed.launching import ended, losses, run, start

pytestmark = pytest.mark.slow
STEPS = 12
LONG = 20_000  # steps, more than are reached


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("alone") / "run"
    run("transformer", folder, STEPS)
    return folder


@pytest.mark.parametrize("processes", [2, 4])
def test_several_processes_have_the_losses_of_one(tmp_path, alone, processes):
    for status, said in ended(start("transformer", tmp_path / "run", STEPS, processes)):
        assert status == 0, said
    np.testing.assert_allclose(losses(tmp_path / "run"), losses(alone), rtol=1e-5)
    for name in ("result.json", "report.html", "predictions.test.txt"):
        assert (tmp_path / "run" / name).exists()
    assert (tmp_path / "run" / "predictions.test.txt").read_text() == (alone / "predictions.test.txt").read_text()


def under_way(tmp_path, processes):
    """Processes that have made a checkpoint and go on."""
    found = start("transformer", tmp_path / "run", LONG, processes, train__checkpoint_every=8, train__log_every=8)
    while not list((tmp_path / "run" / "checkpoints").glob("[0-9]*")):
        assert all(process.poll() is None for process in found), ended(found)
        time.sleep(0.2)
    return found


@pytest.mark.parametrize(("how", "host"), [("SIGKILL", 0), ("SIGSTOP", 1), ("SIGSTOP", 0)])
def test_where_a_host_is_killed_or_stopped_the_others_end_within_a_minute_and_name_it(tmp_path, how, host):
    lose(under_way(tmp_path, 2), how, host)


def lose(processes, how, host):
    """Kill or stop one of two hosts; the other one ends and names it."""
    processes[host].send_signal(getattr(signal, how))
    ((status, said),) = ended([processes[1 - host]], timeout=60)
    processes[host].kill()
    processes[host].wait()
    assert status == 1
    assert f"error: host {host} (" in said
    assert f"process {processes[host].pid})" in said


def test_after_a_host_was_killed_the_same_commands_go_on_and_so_does_one_process(tmp_path):
    lose(under_way(tmp_path, 2), "SIGKILL", 1)
    reached = max(int(path.name) for path in (tmp_path / "run" / "checkpoints").glob("[0-9]*"))
    more = {"train__checkpoint_every": 8, "train__log_every": 8}
    processes = start("transformer", tmp_path / "run", LONG, 2, **more)
    while max(int(path.name) for path in (tmp_path / "run" / "checkpoints").glob("[0-9]*")) <= reached:
        assert all(process.poll() is None for process in processes), ended(processes)
        time.sleep(0.2)
    for process in processes:
        process.terminate()
    (first, said), (second, nothing) = ended(processes)
    assert first == second == 143
    assert "stopped and saved at step" in said
    assert nothing == ""


def test_a_refusal_ends_every_process_at_once(tmp_path):
    started = time.monotonic()
    found = ended(start("transformer", tmp_path / "run", 8, 2, optimizer__name="nonsense"), timeout=60)
    assert [status for status, _ in found] == [1, 1]
    assert all("config.optimizer.name='nonsense'" in said for _, said in found), found
    assert time.monotonic() - started < 60
