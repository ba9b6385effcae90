"""Bad input through the real process: one clear line, a non-zero exit, nothing half-written, nothing lost."""

import os
import shutil
import subprocess
import sys
import time

import pytest
from support import ROOT

GOOD = "Go now.\tVa !\n" * 30


def assert_refused(process, *messages):
    assert process.returncode == 1, (process.out, process.err)
    assert process.out == ""
    errors = [line for line in process.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, process.err
    assert process.err.splitlines()[-1] == errors[0]
    assert "Traceback" not in process.err
    for message in messages:
        assert message in errors[0]


FILES = {
    "empty": (b"", ["pairs.txt: the file is empty", "manythings.org"]),
    "no_tab": (b"Go.\tVa !\nHi. Salut.\n", ["pairs.txt:2: no tab", "--config.data.on_bad_line=skip"]),
    "not_utf8": (b"Go.\tVa !\nCaf\xe9\tx\n", ["pairs.txt:2: not UTF-8"]),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_file_that_cannot_be_used(launcher, tmp_path, kind):
    data, messages = FILES[kind]
    launcher.pairs.write_bytes(data)
    assert_refused(launcher.run(tmp_path / "w"), *messages)
    assert not (tmp_path / "w").exists()


VALUES = {
    "missing_file": (
        {"data__path": "/absent/fra.txt"},
        ["/absent/fra.txt: no such file", "manythings.org", "data.path"],
    ),
    "only_unknown": ({"data__min_count": 999}, ["<unk>", "--config.data.min_count"]),
    "too_long": ({"data__max_length": 4}, ["pairs.txt:1:", "max_length is 4", "--config.data.on_long=truncate"]),
    "bucket": ({"data__max_length": 40}, ["config.data.max_length=40", "config.data.buckets"]),
    "misspelt": ({"train__stepz": 3}, ["--config.train.stepz", "Did you mean 'steps'?"]),
    "unknown": ({"xyzzy": 3}, ["--config.xyzzy: the config has no 'xyzzy'"]),
    "wrong_type": ({"train__steps": "many"}, ["--config.train.steps=many", "int"]),
    "model": ({"model__name": "rnn"}, ["config.model.name='rnn'", "bahdanau"]),
    "kwargs": ({"model__kwargs__output": "wide"}, ["config.model.kwargs: output='wide'", "state, deep"]),
    "schedule": ({"optimizer__schedule": "step"}, ["config.optimizer.schedule='step'", "cosine"]),
    "best_by": ({"train__best_by": "bleu"}, ["config.train.best_by='bleu'", "validation.bleu"]),
    "dtype": ({"precision__dtype": "float33"}, ["config.precision.dtype='float33'", "bfloat16"]),
    "matmul": ({"precision__matmul": "best"}, ["config.precision.matmul='best'", "highest"]),
    "seeds": ({"seeds": "()"}, ["config.seeds is empty"]),
    "init_from": ({"train__init_from": "/absent"}, ["config.train.init_from: /absent holds no run"]),
    "nan": ({"optimizer__learning_rate": 1e30}, ["seed 0", "not finite at step 2", "learning_rate"]),
}


@pytest.mark.parametrize("kind", VALUES)
def test_a_value_that_cannot_be_used(launcher, tmp_path, kind):
    overrides, messages = VALUES[kind]
    assert_refused(launcher.run(tmp_path / "w", **overrides), *messages)
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("configs/nmt.py:bahdanu,tsv ", "it is MODEL,CORPUS with bahdanau"),
        ("configs/kernel_regression.py:sine", "choose one of sine_power"),
        ("configs/absent.py", "configs/absent.py: no such config; there are configs/kernel_regression.py"),
    ],
)
def test_a_config_that_does_not_exist(launcher, tmp_path, config, message):
    assert_refused(launcher.run(tmp_path / "w", config=config), message)
    assert not (tmp_path / "w").exists()


def test_flags_that_say_nothing(launcher, tmp_path):
    assert_refused(launcher.run(tmp_path / "w", config=None), "no run here", "--config=configs/")
    assert_refused(launcher.run(tmp_path / "w", "--mode=evaluate"), "no run here")
    assert_refused(launcher.run(tmp_path / "w", "--mode=trian"), "--mode=trian", "train|evaluate")
    assert_refused(launcher.run(tmp_path / "w", "stray"), "stray: not a flag")
    assert not (tmp_path / "w").exists()


def test_bad_lines_are_skipped_and_counted_when_the_config_says_so(launcher, tmp_path):
    with open(launcher.pairs, "ab") as file:
        file.write(b"no tab here\n\xff\xfe\tx\n")
    process = launcher.run(tmp_path / "w", data__on_bad_line="skip", train__steps=2)
    assert process.returncode == 0, process.err
    assert "skipped 2 bad lines, first" in process.err
    assert "pairs.txt:61, " in process.err


def test_truncation_is_counted_and_told(launcher, tmp_path):
    process = launcher.run(tmp_path / "w", data__on_long="truncate", data__max_length=6, train__steps=2)
    assert process.returncode == 0, process.err
    assert "truncated" in process.err
    assert "pairs longer than config.data.max_length" in process.err


def test_a_workdir_of_another_config(finished):
    launcher, folder, _ = finished
    before = {path: path.read_bytes() for path in folder.glob("*.json*")}
    process = launcher.run(folder, optimizer__learning_rate=0.5)
    assert_refused(process, "optimizer.learning_rate: 0.002 there, 0.5 now", "another --workdir")
    assert {path: path.read_bytes() for path in folder.glob("*.json*")} == before


def test_a_workdir_in_use(launcher, tmp_path):
    running = launcher.start(tmp_path / "w", train__steps=100000)
    while not (tmp_path / "w" / "config.json").exists():
        assert running.poll() is None
        time.sleep(0.05)
    try:
        assert_refused(launcher.run(tmp_path / "w", train__steps=100000), f"in use by process {running.pid}")
    finally:
        running.kill()
        running.communicate()


def test_a_loss_that_is_not_finite_keeps_the_last_good_checkpoint(launcher, tmp_path):
    explosion = {"optimizer__schedule": "linear", "optimizer__warmup_steps": 20, "optimizer__learning_rate": 1e34}
    process = launcher.run(tmp_path / "w", train__checkpoint_every=1, **explosion)
    assert_refused(process, "not finite at step")
    if "is kept" in process.err:
        assert list((tmp_path / "w" / "checkpoints").glob("[0-9]*"))


@pytest.mark.slow
def test_a_checkpoint_that_cannot_be_read(finished, tmp_path):
    launcher, folder, _ = finished
    shutil.copytree(folder, tmp_path / "w")
    newest = max((path for path in (tmp_path / "w" / "checkpoints").iterdir()), key=lambda path: int(path.name))
    for path in newest.rglob("*"):
        if path.is_file():
            path.write_bytes(b"")
    process = launcher.run(tmp_path / "w", train__steps=44)
    assert process.returncode == 0, process.err
    assert f"{newest}: cannot be read" in process.err
    assert "resuming at step 32" in process.err


def test_a_full_disk(launcher, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "none", disk], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        process = launcher.run(disk / "w", model__kwargs__hidden=64)
        assert_refused(process, "disk full", "free some space and run the same command again")
        assert not (disk / "w" / "result.json").exists()
        subprocess.run(["mount", "-o", "remount,size=60m", disk], check=True)
        again = launcher.run(disk / "w", model__kwargs__hidden=64)
        assert again.returncode == 0, again.err
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def test_help_reads_well():
    process = subprocess.run(
        [sys.executable, "launch.py", "--help"], cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ
    )
    for text in (
        "Train, evaluate, report on or describe an experiment",
        "--config",
        "--mode",
        "--workdir",
        "profile",
    ):
        assert text in process.stdout
