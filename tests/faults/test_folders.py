"""A folder that is full, cannot be written, or changes under a run; and a clock that jumps."""

import ast
import json
import shutil
import subprocess

import pytest
from attacked import copied, launch
from support import ROOT
from sweeper import Sweeper, train

from attention_jax.errors import UserError


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run, and how its config is made."""
    sweeper = Sweeper(tmp_path_factory.mktemp("trained"))
    train(sweeper.config(), sweeper.folder / "run")
    return sweeper, sweeper.folder / "run"


@pytest.fixture
def disk(tmp_path):
    """A small disk, and how it is given another size or made read-only."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def mount(*options):
        command = ["mount", "-t", "tmpfs", "-o", ",".join(options), "none", folder]
        return subprocess.run(command, capture_output=True, check=False).returncode

    if mount("size=60m"):
        pytest.skip("mounting a small disk needs root")
    yield folder, lambda *options: mount("remount", *options)
    subprocess.run(["umount", "-l", folder], check=True)


@pytest.mark.slow
def test_a_disk_that_is_full_when_a_run_is_reported_leaves_no_result_and_the_same_command_ends_it(trained, disk):
    sweeper, (folder, _) = trained[0], disk
    run = copied(trained[1], folder / "run")
    before = json.loads((run / "result.json").read_text())
    for name in ("result.json", "report.html"):
        (run / name).unlink()
    shutil.rmtree(run / "figures")
    filled = folder / "filled"
    filled.write_bytes(bytes(shutil.disk_usage(folder).free - 2**15))
    with pytest.raises(OSError, match="No space left"):
        train(sweeper.config(), run)
    assert not (run / "result.json").exists()
    filled.unlink()
    train(sweeper.config(), run)
    result = json.loads((run / "result.json").read_text())
    assert (result["test"], result["validation"]) == (before["test"], before["validation"])
    assert (run / "report.html").exists()


def test_a_folder_on_a_read_only_disk_is_measured_and_is_refused_to_training_in_one_line(trained, disk):
    sweeper, (folder, remount) = trained[0], disk
    run = copied(trained[1], folder / "run")
    assert remount("ro") == 0
    assert launch(run, "evaluate").out == launch(trained[1], "evaluate").out
    with pytest.raises(UserError, match=r"run: cannot be written \(Read-only file system\): choose another --workdir"):
        train(sweeper.config(train__steps=30), run)


def test_data_that_changed_between_a_stop_and_the_next_start_are_refused_by_name(trained, tmp_path):
    run = copied(trained[1], tmp_path / "run")
    file = run / "data" / "train.source.npy"
    changed = bytearray(file.read_bytes())
    changed[-3] ^= 1
    file.write_bytes(changed)
    with pytest.raises(UserError, match=r"train\.source\.npy: damaged: its digest is not that of the import"):
        train(trained[0].config(train__steps=30), run)


def test_no_time_is_taken_from_a_clock_that_jumps():
    rooms = [path for room in ("attention_jax", "configs") for path in (ROOT / room).rglob("*.py")]
    for path in rooms:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "time":
                assert node.attr in ("perf_counter", "monotonic", "sleep"), f"{path}:{node.lineno}: time.{node.attr}"
            assert "datetime" not in (getattr(node, "module", ""), getattr(node, "id", "")), path
