"""A mode opens a corpus, a translator's programs and a run's checkpoints once, however much it writes from them."""

import time

import pytest
from sweeper import Sweeper

from attention_jax.launcher import experiments
from attention_jax.launcher.modes import MODES
from attention_jax.runs.experiment import Request
from attention_jax.tasks.translation import combining, session
from attention_jax.training.storage import Storage

OPENED = {
    "corpus": (session, "load_or_import"),
    "programs": (session, "translator"),
    "variables": (combining, "best_variables"),
}


@pytest.fixture(scope="module")
def sweeper(tmp_path_factory):
    found = Sweeper(tmp_path_factory.mktemp("opened"))
    found.alone(found.config())
    return found


@pytest.fixture
def opened(monkeypatch):
    """How often each thing was opened since the test began."""
    counts = dict.fromkeys((*OPENED, "checkpoints"), 0)

    def counting(name, function):
        def counted(*args, **kwargs):
            counts[name] += 1
            return function(*args, **kwargs)

        return counted

    for name, (module, attribute) in OPENED.items():
        monkeypatch.setattr(module, attribute, counting(name, getattr(module, attribute)))
    monkeypatch.setattr(Storage, "read", counting("checkpoints", Storage.read))
    return counts


def launch(sweeper, mode, workdir="alone", **asked):
    request = Request(sweeper.config(), sweeper.folder / workdir, time.perf_counter(), False)
    MODES[mode](experiments.load("nmt"), request._replace(**asked))


@pytest.mark.parametrize("mode", ["evaluate", "report", "translate"])
def test_a_mode_of_a_trained_run_opens_everything_once(sweeper, opened, mode):
    (sweeper.folder / "lines.txt").write_text("the cat sleeps .\n\na boy reads .\n")
    launch(sweeper, mode, **{"input": str(sweeper.folder / "lines.txt")} if mode == "translate" else {})
    assert opened == {"corpus": 1, "programs": 1, "variables": 1, "checkpoints": 1}


def test_training_measures_draws_and_reports_with_what_it_has_opened(sweeper, opened):
    launch(sweeper, "train", "fresh")
    assert opened == {"corpus": 1, "programs": 1, "variables": 1, "checkpoints": 1}


def test_a_finished_run_that_is_started_again_opens_nothing(sweeper, opened):
    launch(sweeper, "train")
    assert not any(opened.values())


def test_a_session_keeps_the_variables_of_the_last_run_alone(sweeper, opened, tmp_path):
    config, run = sweeper.config(), sweeper.folder / "alone"
    (tmp_path / "again").symlink_to(run)
    opened_session = experiments.load("nmt").open(config, run / "data")
    first = opened_session.trained(config, run)
    assert opened_session.trained(config, run) is first
    assert opened_session.trained(config, tmp_path / "again") is not first
    assert opened_session.trained(config, run) is not first
    assert opened == {"corpus": 1, "programs": 1, "variables": 3, "checkpoints": 3}
