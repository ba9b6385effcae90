"""What `config.experiment` names: a file of an `experiments` package, or a module of the user's."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT

from attention_jax.errors import UserError
from attention_jax.launcher import experiments
from attention_jax.runs.experiment import Experiment

OWN = """
from attention_jax.runs.experiment import Experiment

EXPERIMENT = Experiment(*[None] * {needed})
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A user's package `mylab`, on the path, and forgotten after the test."""
    (tmp_path / "mylab").mkdir()
    needed = len(Experiment._fields) - len(Experiment._field_defaults)
    files = {
        "study": OWN.format(needed=needed),
        "empty": "",
        "other": "EXPERIMENT = {}",
        "broken": "import not_there\nEXPERIMENT = not_there.EXPERIMENT",
    }
    for name, text in files.items():
        (tmp_path / "mylab" / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "mylab"]:
        del sys.modules[name]


@pytest.mark.parametrize("name", ["nmt", "kernel_regression"])
def test_a_name_is_a_file_of_the_experiments(name):
    assert experiments.load(name) is importlib.import_module(f"experiments.{name}").EXPERIMENT
    assert not [known for known in experiments.names() if known.startswith("_")]


def test_a_name_with_a_dot_is_a_module_of_the_users(folder):
    assert isinstance(experiments.load("mylab.study"), Experiment)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nmtt", r"config.experiment='nmtt': choose one of .*kernel_regression, .*nmt.*or name a module of yours"),
        ("_common", "choose one of"),
        ("", "choose one of"),
        ("mylab.absent", r"config.experiment='mylab.absent': no module 'mylab.absent' in the working folder"),
        ("absent.study", r"no module 'absent' in the working folder"),
        ("mylab.empty", r"mylab/empty.py defines no EXPERIMENT"),
        ("mylab.other", r"EXPERIMENT in .*mylab/other.py is a dict; it must be an attention_jax.runs.experiment"),
    ],
)
def test_what_is_no_experiment_is_refused_in_one_line(folder, name, message):
    with pytest.raises(UserError, match=message) as refused:
        experiments.load(name)
    assert "\n" not in str(refused.value)


def test_what_a_module_itself_lacks_is_not_hidden(folder):
    with pytest.raises(ModuleNotFoundError, match="not_there"):
        experiments.load("mylab.broken")


ASKED = """
import sys
sys.path[:0] = sys.argv[1:]  # the working folder and the checkout, as the launcher has them
from attention_jax.launcher import experiments
for name in sorted(experiments.names()):
    experiments.load(name)
    print(name, sys.modules[f"experiments.{name}"].__file__)
"""


@pytest.mark.parametrize("is_package", [True, False])
def test_the_working_folders_experiments_stand_beside_the_checkouts_and_before_them(tmp_path, is_package):
    (tmp_path / "experiments").mkdir()
    if is_package:
        (tmp_path / "experiments" / "__init__.py").write_text("")
    for name in ("mine", "nmt"):
        needed = len(Experiment._fields) - len(Experiment._field_defaults)
        (tmp_path / "experiments" / f"{name}.py").write_text(OWN.format(needed=needed))
    command = [sys.executable, "-c", ASKED, tmp_path, ROOT]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    found = {name: Path(file).parent.parent for name, file in map(str.split, process.stdout.splitlines())}
    assert found["mine"] == found["nmt"] == tmp_path
    assert found["kernel_regression"] == found["sequence_layers"] == ROOT
