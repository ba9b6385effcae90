"""The package as it is installed: what it holds, what it needs, and its command, outside of the checkout."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv

import pytest
from support import ROOT

import attention_jax
from attention_jax.errors import EXTRAS, UserError, require

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
BUILT_FROM = ("attention_jax", "configs", "experiments", "pyproject.toml", "setup.py", "README.md", "LICENSE")
STUDY = """
from attention_jax.experiments.kernel_regression import EXPERIMENT
"""
CONFIG = """
from attention_jax.configs.kernel_regression import get_config as base
from attention_jax.sweeps.space import grid, product


def get_config():
    config = base()
    config.experiment, config.draws, config.learned.steps = "mylab.study", 2, 2
    return config


def sweep():
    return product([{"estimators": ("kernel",)}], grid("data.n", (5, 7)))
"""


def python(path, *arguments, **kwargs):
    """A process of a user, elsewhere than in the checkout."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run([path, *arguments], env=environment, capture_output=True, text=True, check=False, **kwargs)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """An environment that the wheel is installed in; what the package needs is this one's."""
    pytest.importorskip("setuptools", minversion="77", reason="builds the wheel, and is of the locks: make test")
    folder = tmp_path_factory.mktemp("package")
    source = folder / "source"
    source.mkdir()
    for name in BUILT_FROM:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    wheel = ["wheel", "--no-deps", "--no-build-isolation", f"--wheel-dir={folder}", source]
    subprocess.run([*pip, *wheel], check=True, capture_output=True)
    venv.create(folder / "venv", with_pip=False)
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    (site / "needed.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    (built,) = folder.glob("*.whl")
    subprocess.run([*pip, f"--python={folder / 'venv/bin/python'}", "install", "--no-deps", built], check=True)
    return folder / "venv"


def test_the_wheel_holds_the_package_alone(installed):
    (site,) = installed.glob("lib/python*/site-packages")
    assert {path.name for path in site.iterdir() if not path.name.endswith(".dist-info")} == {
        "attention_jax",
        "needed.pth",
    }
    for file in ("py.typed", "configs/nmt.py", "experiments/nmt.py", "launcher/__main__.py"):
        assert (site / "attention_jax" / file).is_file()
    folders = {path.parent.relative_to(ROOT) for path in (ROOT / "attention_jax").rglob("*.py")}
    assert all((site / folder).is_dir() for folder in folders)


def test_it_is_imported_where_nothing_else_is_installed(installed):
    (site,) = installed.glob("lib/python*/site-packages")
    lines = f"import sys; sys.path.append({str(site)!r}); import attention_jax; print(attention_jax.__version__)"
    process = python(sys.executable, "-I", "-S", "-c", lines)
    assert process.stdout.strip() == attention_jax.__version__, process.stderr


def test_the_command_finds_the_packages_config_files_from_anywhere(installed, tmp_path):
    command = installed / "bin" / "attention-jax"
    process = python(command, "--help", cwd=tmp_path)
    assert "  attention-jax --config=configs/nmt.py:" in process.stdout
    process = python(command, "--config=configs/absent.py", cwd=tmp_path)
    assert "configs/absent.py: no such config; there are configs/attention_variants.py, configs/" in process.stderr
    process = python(command, "--config=configs/kernel_regression.py", "--mode=describe", cwd=tmp_path)
    assert "FLOPs a step" in process.stdout, process.stderr


@pytest.mark.slow
def test_the_command_trains_from_anywhere_and_the_result_says_of_which_version(installed, tmp_path):
    asked = ["--config=configs/kernel_regression.py", "--config.draws=2", "--config.learned.steps=2", "--workdir=w"]
    process = python(installed / "bin" / "attention-jax", *asked, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    result = json.loads((tmp_path / "w" / "result.json").read_text())
    assert result["command"] == f"attention-jax {' '.join(asked)}"
    assert {**result["code"], "version": ""} == {"commit": "", "changed": None, "version": ""}
    assert result["versions"]["attention_jax"] == attention_jax.__version__


@pytest.mark.slow
def test_a_users_own_experiment_and_sweep_run_in_workers_of_the_installed_copy(installed, tmp_path):
    (tmp_path / "mylab").mkdir()
    (tmp_path / "mylab" / "study.py").write_text(STUDY)
    (tmp_path / "mine.py").write_text(CONFIG)
    asked = ["--config=mine.py", "--mode=sweep", "--config.sweep.engine=processes", "--workdir=w"]
    process = python(installed / "bin" / "attention-jax", *asked, cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    assert len(list((tmp_path / "w").glob("cells/*/result.json"))) == 2


def test_the_rooms_are_there_when_they_are_asked_for():
    lines = "import attention_jax as a, sys; assert 'jax' not in sys.modules; print(a.ops.__name__, sorted(dir(a)))"
    process = subprocess.run([sys.executable, "-c", lines], cwd=ROOT, capture_output=True, text=True, check=True)
    assert process.stdout.startswith("attention_jax.ops ")
    for path in (ROOT / "attention_jax").glob("*/__init__.py"):
        assert f"'{path.parent.name}'" in process.stdout
    with pytest.raises(AttributeError, match="module 'attention_jax' has no attribute 'opps'"):
        _ = attention_jax.opps


def test_a_checkout_has_the_package_with_every_extra_but_those_for_tpus_buckets_and_others_kernels():
    extras = PROJECT["optional-dependencies"]
    locked = [
        lines for name, lines in extras.items() if name not in ("compile", "gcs", "tokamax")
    ]  # locks/tpu.txt has the first
    every = [*PROJECT["dependencies"], *(line for lines in locked for line in lines)]
    assert sorted(every, key=str.lower) == (ROOT / "requirements.txt").read_text(encoding="utf-8").split()
    named = {re.split("[>=]", line)[0].replace("-", "_"): extra for extra, lines in extras.items() for line in lines}
    assert named.pop("jax[tpu]") == "compile"  # libtpu, of the release that fits
    assert named | {"libtpu": "compile"} == EXTRAS


def test_what_an_extra_brings_is_asked_for_in_one_line(monkeypatch):
    require("sacrebleu")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r'^sacrebleu is not installed.*: pip install "attention_jax\[nmt\]".$'):
        require("sacrebleu")
