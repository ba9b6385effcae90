"""A run killed, stopped, damaged, extended or started from another goes on as it should."""

import json
import re
import shutil
import time

import jax
import numpy as np
import pytest

CLOCK = ("seconds", "train.step_seconds", "train.tokens_per_second")


def parameters(folder):
    """Every array of the newest checkpoint, by name."""
    import orbax.checkpoint as ocp

    step = max(int(path.name) for path in (folder / "checkpoints").iterdir() if path.name.isdigit())
    tree = ocp.StandardCheckpointer().restore(folder.absolute() / "checkpoints" / str(step) / "default")
    return step, tree


def assert_same_run(one, other):
    (step, tree), (other_step, other_tree) = parameters(one), parameters(other)
    assert step == other_step
    jax.tree.map(np.testing.assert_array_equal, tree, other_tree)
    for first, second in zip(*(metrics(folder) for folder in (one, other)), strict=True):
        assert first == second


def metrics(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in line.items() if name not in CLOCK} for line in lines]


@pytest.mark.slow
@pytest.mark.parametrize("at_step", [12, 28])
def test_a_run_killed_at_any_moment_goes_on_to_the_same_result(finished, tmp_path, at_step):
    launcher, unbroken, _ = finished
    killed = launcher.interrupt("SIGKILL", tmp_path / "run", at_step, saved=True)
    assert killed.returncode == -9
    assert not (tmp_path / "run" / "result.json").exists()
    resumed = launcher.run(tmp_path / "run")
    assert resumed.returncode == 0, resumed.err
    assert "resuming at step" in resumed.err
    assert_same_run(tmp_path / "run", unbroken)


@pytest.mark.slow
def test_what_a_run_reports_does_not_depend_on_what_is_left_of_its_log(finished, tmp_path):
    launcher, unbroken, _ = finished
    log = (unbroken / "metrics.jsonl").read_text()
    for number, left in enumerate((None, log[:500], log.replace('"step": 24', '"step": 42'))):
        folder = tmp_path / str(number)
        shutil.copytree(unbroken, folder)
        (folder / "result.json").unlink()
        (folder / "metrics.jsonl").unlink() if left is None else (folder / "metrics.jsonl").write_text(left)
        process = launcher.run(folder)
        assert process.returncode == 0, process.err
        assert (folder / "metrics.jsonl").read_text() == log
        result, whole = (json.loads((run / "result.json").read_text()) for run in (folder, unbroken))
        own = {name: whole[name] for name in ("seconds", "goodput", "command")}  # its time goes on, in its own folder
        assert {**result, **own} == whole


def flipped(folder):
    """The largest file of a folder, with a byte of it flipped."""
    largest = max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    damaged = bytearray(largest.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    largest.write_bytes(damaged)
    return largest


def test_a_flipped_byte_in_the_newest_checkpoint_makes_a_run_go_on_from_the_one_before_and_say_so(finished, tmp_path):
    launcher, unbroken, _ = finished
    shutil.copytree(unbroken, tmp_path / "w")
    (tmp_path / "w" / "result.json").unlink()
    newest = tmp_path / "w" / "checkpoints" / "40"
    largest = flipped(newest)
    again = launcher.run(tmp_path / "w")
    assert again.returncode == 0, again.err
    said = f"{newest}: cannot be read ({largest.relative_to(newest)}: its digest is not what was saved); using the one"
    assert said in again.err
    assert "Traceback" not in again.err
    assert parameters(tmp_path / "w")[0] == 40
    assert metrics(tmp_path / "w") == metrics(unbroken)


def test_a_flipped_byte_in_the_best_variables_is_refused(finished, tmp_path):
    launcher, unbroken, _ = finished
    shutil.copytree(unbroken, tmp_path / "w")
    for folder in (tmp_path / "w" / "best" / "seed_0").iterdir():
        flipped(folder)
    refused = launcher.run(tmp_path / "w", "--mode=evaluate", config="")
    assert refused.returncode == 1
    assert "the best variables cannot be read (default/" in refused.err
    assert refused.out == ""


@pytest.mark.parametrize(
    ("how", "status"),
    [
        ("SIGTERM", 143),
        pytest.param("SIGINT", 130, marks=pytest.mark.slow),
        *(pytest.param(name, 143, marks=pytest.mark.slow) for name in ("SIGHUP", "SIGUSR2")),
    ],
)
def test_a_run_asked_to_stop_saves_says_how_to_go_on_and_does(finished, tmp_path, how, status):
    launcher, unbroken, _ = finished
    long = {"train__steps": 4000, "train__checkpoint_every": 4000, "optimizer__decay_steps": 40}  # rates as unbroken
    stopped = launcher.interrupt(how, tmp_path / "run", 4, **long)
    assert stopped.returncode == status, stopped.err
    assert re.search(r"stopped and saved at step \d+ of 4,000. The same command goes on from there.", stopped.err)
    step = parameters(tmp_path / "run")[0]
    assert step >= 4
    resumed = launcher.interrupt("SIGINT", tmp_path / "run", step // 4 * 4 + 8, **long)
    assert f"resuming at step {step}" in resumed.err
    assert metrics(tmp_path / "run")[:3] == metrics(unbroken)[:3]


@pytest.mark.slow
def test_a_finished_run_goes_on_when_its_steps_are_raised(finished, tmp_path):
    launcher, folder, _ = finished
    shutil.copytree(folder, tmp_path / "run")
    longer = launcher.run(tmp_path / "run", train__steps=48)
    assert longer.returncode == 0, longer.err
    assert "resuming at step 40" in longer.err
    assert parameters(tmp_path / "run")[0] == 48


@pytest.mark.slow
def test_a_run_without_its_checkpoints_says_that_it_starts_again(finished, tmp_path):
    launcher, folder, _ = finished
    shutil.copytree(folder, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoints"))
    longer = launcher.run(tmp_path / "run", train__steps=48)
    assert longer.returncode == 0, longer.err
    assert f"{tmp_path / 'run' / 'checkpoints'}: has no checkpoint; training starts at step 0" in longer.err


@pytest.fixture(scope="module")
def of_two_seeds(finished, tmp_path_factory):
    """A finished run of two seeds."""
    launcher, _, _ = finished
    folder = tmp_path_factory.mktemp("seeds") / "run"
    process = launcher.run(folder, seeds="(0,1)")
    assert process.returncode == 0, process.err
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kill", [False, True])
def test_a_finished_run_gains_seeds_and_is_what_it_would_be_with_all_from_the_start(
    finished, of_two_seeds, tmp_path, kill
):
    launcher, one, _ = finished
    folder = tmp_path / "run"
    shutil.copytree(one, folder)
    if kill:
        process = launcher.start(folder, seeds="(0,1)")
        log = folder / "more" / "metrics.jsonl"
        while process.poll() is None and not (log.exists() and '"step": 8,' in log.read_text()):
            time.sleep(0.01)
        process.kill()
        process.communicate()
        assert json.loads((folder / "config.json").read_text())["seeds"] == [0]  # still the run that it was
    process = launcher.run(folder, seeds="(0,1)")
    assert process.returncode == 0, process.err
    result, whole = (json.loads((run / "result.json").read_text()) for run in (folder, of_two_seeds))
    assert result["seeds"] == [0, 1]
    assert result["members"] == whole["members"]
    if not kill:  # its time is that of both trainings, none of which was lost
        before = json.loads((one / "result.json").read_text())
        spent, earlier = ({k: part * of["seconds"] for k, part in of["goodput"].items()} for of in (result, before))
        assert spent["lost"] == 0
        assert spent["steps"] > earlier["steps"]
        assert all(spent[phase] >= 0.99 * earlier[phase] for phase in ("compile", "data", "save", "evaluation"))
    assert result["ci95"] == whole["ci95"]
    assert_same_run(folder, of_two_seeds)
    assert not (folder / "more").exists()
    assert len(list((folder / "tensorboard").iterdir())) == 2
    assert launcher.run(folder, "--mode=evaluate", config="").returncode == 0


def test_a_run_gains_seeds_after_its_own_alone(finished):
    launcher, folder, _ = finished
    process = launcher.run(folder, seeds="(1,0)")
    assert process.returncode == 1
    assert "holds a run of another config (config.seeds: [0] there, [1, 0] now)" in process.err


@pytest.mark.slow
def test_a_run_can_start_from_anothers_parameters_and_vocabulary(finished, tmp_path):
    launcher, folder, _ = finished
    tuned = launcher.run(tmp_path / "run", train__init_from=folder, train__steps=4, optimizer__learning_rate=0.0)
    assert tuned.returncode == 0, tuned.err
    values = json.loads((tmp_path / "run" / "result.json").read_text())
    assert values["validation"]["loss"] == json.loads((folder / "result.json").read_text())["validation"]["loss"]


@pytest.mark.slow
def test_starting_from_another_run_survives_a_kill_before_the_first_checkpoint(finished, tmp_path):
    launcher, folder, _ = finished
    flags = {"train__init_from": folder, "train__checkpoint_every": 4000, "train__log_every": 1, "train__steps": 4000}
    unchanged = {**flags, "optimizer__learning_rate": 0.0, "optimizer__dropout": 0.0}
    first = launcher.interrupt("SIGKILL", tmp_path / "run", 2, **unchanged)
    assert first.returncode == -9
    before = metrics(tmp_path / "run")[:2]
    launcher.interrupt("SIGKILL", tmp_path / "run", 2, **unchanged)
    assert metrics(tmp_path / "run")[:2] == before


def test_starting_from_another_kind_of_model_is_refused(finished, tmp_path):
    launcher, folder, _ = finished
    process = launcher.run(tmp_path / "run", train__init_from=folder, model__kwargs__hidden=16)
    assert process.returncode == 1
    assert "error: config.train.init_from" in process.err
    assert "Traceback" not in process.err
    assert not (tmp_path / "run").exists()
