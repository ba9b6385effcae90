"""Files of a finished run and of imported data, damaged: a mode gives what it gave before, or names the file."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from attacked import DEEP, copied, launch
from ml_collections import ConfigDict
from support import ROOT
from sweeper import SMALL, TINY, train

from attention_jax.data.config import DataConfig
from attention_jax.data.grammar import sentence_pairs
from attention_jax.data.importing import load_or_import
from attention_jax.errors import UserError
from attention_jax.files import read_arrays
from attention_jax.launcher.modes import MODES
from attention_jax.runs.folder import Run, hold, open_run, read_config
from attention_jax.runs.links import refuse_links
from attention_jax.runs.machine import cache_folder
from attention_jax.sweeps.folder import read_result
from attention_jax.sweeps.plan import read_plan
from configs import nmt
from experiments.nmt import check

READ = {  # by which modes a file is read: the others need not notice
    "config.json": ("evaluate", "train", "report", "translate"),
    "result.json": ("train", "report"),
    "predictions.test.txt": ("report",),
    "data/meta.json": ("evaluate", "report", "translate"),
    "data/source.vocabulary": ("evaluate", "translate"),
    "data/train.source.npy": ("evaluate",),
    "data/test.source.offsets.npy": ("evaluate",),
    "data/validation.pairs.jsonl": ("evaluate",),
    "data/test.bucket_12.npy": ("evaluate",),
}


def flipped(content, index):
    return content[:index] + bytes([content[index] ^ 0xFF]) + content[index + 1 :]


DAMAGES = {
    "empty": lambda content: b"",
    "truncated": lambda content: content[: len(content) // 2],
    "flipped": lambda content: flipped(content, len(content) // 2),
    "flipped_first": lambda content: flipped(content, 0),
    "zeros": lambda content: bytes(len(content)),
    "missing": None,
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run with a line to translate beside it."""
    folder = tmp_path_factory.mktemp("trained")
    lines = (f"{pair.source}\t{pair.target}\n" for pair in sentence_pairs(1, 40))
    (folder / "pairs.txt").write_text("".join(lines), encoding="utf-8")
    (folder / "line.txt").write_text("a cat sleeps .\n")
    config = nmt.get_config("bahdanau,tsv")
    config.update_from_flattened_dict({**TINY, **SMALL["bahdanau"], "data.path": str(folder / "pairs.txt")})
    train(config.lock(), folder / "run")
    return folder


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", READ)
def test_a_damaged_file_is_named_by_every_mode_that_reads_it(trained, tmp_path, name, damage):
    run = copied(trained / "run", tmp_path / "run")
    change = DAMAGES[damage]
    (run / name).unlink() if change is None else (run / name).write_bytes(change((run / name).read_bytes()))
    for mode in READ[name]:
        if (name, damage, mode) == ("result.json", "missing", "train"):
            continue  # an unfinished run, which goes on
        given = trained / "line.txt" if mode == "translate" else "-"
        refusal = launch(run, mode, given).refusal
        named = str(run) if damage == "missing" and name in ("config.json", "result.json") else str(run / name)
        assert refusal.startswith(f"error: {named}"), (mode, refusal)


@pytest.mark.parametrize("name", ["data/meta.json", "data/train.source.npy", "data/source.vocabulary"])
def test_a_file_of_other_data_is_refused(trained, tmp_path, name):
    run, other = copied(trained / "run", tmp_path / "run"), tmp_path / "other"
    lines = (f"{pair.source}\t{pair.target}\n" for pair in sentence_pairs(2, 40))
    (tmp_path / "pairs.txt").write_text("".join(lines), encoding="utf-8")
    load_or_import(other, DataConfig(**read_config(run).data)._replace(path=str(tmp_path / "pairs.txt")))
    (run / name).write_bytes((other / name.removeprefix("data/")).read_bytes())
    assert f"{run}/data/" in launch(run, "evaluate").refusal


FORMS = {"list": b"[]", "text": b'"x"', "number": b"5", "null": b"null", "object": b"{}", "deep": DEEP, "nan": b"NaN"}


@pytest.mark.parametrize("form", FORMS)
def test_json_of_another_form_is_refused_in_one_line(tmp_path, form):
    readers = {
        "config.json": lambda: read_config(tmp_path),
        "result.json": lambda: Run(tmp_path, 0).result(),
        "plan.json": lambda: read_plan(tmp_path / "plan.json"),
    }
    for name, read in readers.items():
        (tmp_path / name).write_bytes(FORMS[form])
        with pytest.raises(UserError, match=rf"{name}: not (a config|a result|the plan|the config)") as refused:
            read()
        assert "\n" not in str(refused.value)
        assert len(str(refused.value)) < 300
        (tmp_path / name).unlink()
    (tmp_path / "result.json").write_bytes(FORMS[form])
    assert read_result(tmp_path) is None


SECTIONS = ("train", "data", "model", "evaluate", "optimizer", "precision", "experiment", "seeds")


@pytest.mark.parametrize("key", SECTIONS)
def test_a_part_of_a_config_of_another_type_is_refused_by_its_name(trained, tmp_path, key):
    run = copied(trained / "run", tmp_path / "run")
    for value in (None, 5, [1, "a"], [[0]], -1.5, {"a": {}} if key in ("experiment", "seeds") else "x"):
        config = json.loads((trained / "run" / "config.json").read_text())
        (run / "config.json").write_text(json.dumps({**config, key: value}))
        assert f"{run / 'config.json'}: not a config ({key} is " in launch(run, "evaluate").refusal


@pytest.mark.parametrize("key", ["train.steps", "data.buckets", "model.kwargs", "evaluate.combine"])
@pytest.mark.parametrize("value", [None, "x", {}, [[1]], -1])
def test_a_value_of_a_config_of_another_type_is_refused(trained, tmp_path, key, value):
    run = copied(trained / "run", tmp_path / "run")
    config = json.loads((run / "config.json").read_text())
    section, _, name = key.partition(".")
    config[section][name] = value
    (run / "config.json").write_text(json.dumps(config))
    assert f"error: {run}" in launch(run, "evaluate").refusal


METRICS = (
    *(b"[]", b'"x"', b"{}", DEEP, b"\0", b"\xff\xfe", b"1" * 5000, b"NaN"),
    *(b'{"step": "a", "seed": 0, "seconds": 1}', b'{"step": 1, "seed": [], "seconds": 1}'),
    *(b'{"step": 1, "seed": 0, "seconds": null}', b'{"step": 1, "seed": 0, "seconds": 1, "train.loss": "x"}'),
    b'{"step": 1e400, "seed": 0, "seconds": 1}',
)


def test_a_line_of_metrics_that_is_damaged_is_left_out_alone(tmp_path):
    good = [{"step": step, "seed": 0, "seconds": 1.0} for step in (1, 2)]
    first, last = (json.dumps(line).encode() for line in good)
    for bad in METRICS:
        (tmp_path / "metrics.jsonl").write_bytes(b"\n".join((first, bad, last, b"")))
        assert Run(tmp_path, 0).metrics() == good, bad[:80]
    separated = '{"step": 3, "seed": 0, "seconds": 1, "a\u2028b": 2}\n'.encode()
    (tmp_path / "metrics.jsonl").write_bytes(first + b"\n" + separated)
    assert [line["step"] for line in Run(tmp_path, 0).metrics()] == [1, 3]


ARRAYS = {"empty": b"", "garbage": b"x" * 100, "zip": b"PK\3\4" + bytes(100)}


@pytest.mark.parametrize("content", ARRAYS)
def test_arrays_that_are_damaged_are_named(tmp_path, content):
    path = tmp_path / "scores.npz"
    path.write_bytes(ARRAYS[content])
    with pytest.raises(UserError, match=f"{path}: damaged"):
        read_arrays(path)
    np.savez_compressed(path, a=np.arange(1000))
    path.write_bytes(flipped(path.read_bytes(), 80))
    with pytest.raises(UserError, match=f"{path}: damaged"):
        read_arrays(path)
    path.unlink()
    with pytest.raises(UserError, match=f"{path}: cannot be read"):
        read_arrays(path)


def test_a_run_in_a_folder_that_cannot_be_written_is_evaluated_and_not_reported(trained, tmp_path, monkeypatch):
    run = copied(trained / "run", tmp_path / "run")
    before = launch(run, "evaluate").out
    (run / ".lock").unlink()
    opened, asked = os.open, os.access
    inside = str(run)

    def refuse(path, flags, *args, **kwargs):
        if flags & (os.O_WRONLY | os.O_RDWR) and str(path).startswith(inside):
            raise OSError(30, "Read-only file system", str(path))
        return opened(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(os, "access", lambda path, how: not str(path).startswith(inside) and asked(path, how))
    assert launch(run, "evaluate").out == before
    for mode in ("report", "train"):
        assert launch(run, mode).refusal.startswith(f"error: {run}: cannot be written (Read-only file system)")


LINKS = (".lock", "result.json", "report.html", "metrics.jsonl", "config.json", "figures", "figures/learning.png")


@pytest.mark.parametrize("name", LINKS)
def test_a_link_out_of_a_runs_folder_is_refused_and_what_it_leads_to_stays(trained, tmp_path, name):
    run, victim = copied(trained / "run", tmp_path / "run"), tmp_path / "victim"
    path = run / name
    if path.is_dir():
        path.rename(victim)
    else:
        path.rename(victim) if path.exists() else victim.write_text("mine")
    path.symlink_to(victim)
    kept = {file: file.read_bytes() for file in victim.rglob("*")} if victim.is_dir() else victim.read_bytes()
    for mode in ("report", "train"):
        assert f"{path}: a link" in launch(run, mode).refusal
    assert kept == ({file: file.read_bytes() for file in victim.rglob("*")} if victim.is_dir() else victim.read_bytes())


def test_the_folder_itself_may_be_a_link_and_so_may_what_stays_inside(trained, tmp_path):
    run = copied(trained / "run", tmp_path / "run")
    (tmp_path / "link").symlink_to(run)
    (run / "latest.txt").symlink_to("predictions.test.txt")
    refuse_links(tmp_path / "link")
    assert launch(tmp_path / "link", "train").out


def test_a_lock_that_is_a_link_empties_nothing(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(victim)
    with pytest.raises(UserError, match="a link, which is not followed"), hold(tmp_path / "run"):
        pass
    with pytest.raises(UserError, match="a link"), open_run(tmp_path / "run", nmt.get_config(), 0.0):
        pass
    assert victim.read_text() == "mine"


def test_a_user_without_a_home_has_no_cache_of_programs(monkeypatch):
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    assert cache_folder() is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--workdir=",), "error: --workdir=: empty: name a folder"),
        (("--workdir", ""), "error: --workdir=: empty: name a folder"),
        (("--workdir=\udcff",), r"error: --workdir=\udcff: not UTF-8"),
    ],
)
def test_a_folder_without_a_name_or_with_one_that_is_not_utf8_is_refused(arguments, message):
    config = ("--config=configs/kernel_regression.py",)
    command = [sys.executable, "-c", STARTED, *config, *(os.fsencode(argument) for argument in arguments)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert (process.returncode, process.stdout) == (1, "")
    assert process.stderr.startswith(message)
    assert len(process.stderr.splitlines()) == 1


STARTED = "import sys; from attention_jax.launcher.flags import parse; parse(['launch.py', *sys.argv[1:]])"


def test_buckets_that_are_no_lengths_are_refused():
    for buckets in ((), "", "abc", (8, "x"), (8, 4), (0,), (True, 4), 5):
        config = nmt.get_config("bahdanau,tsv").to_dict()
        config["data"]["buckets"] = buckets
        with pytest.raises(UserError, match=r"config.data.buckets=.*: needs lengths in rising order"):
            check(ConfigDict(config))


def test_every_mode_is_attacked_or_reads_no_run():
    assert {mode for modes in READ.values() for mode in modes} | {
        "generate", "compare", "prepare", "describe", "compile", "sweep", "search", "plan", "work",
    } == {*MODES}  # fmt: skip
