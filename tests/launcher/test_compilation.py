"""--mode=compile: a training step compiled for a machine, whether it fits, and what its devices send."""

import importlib.util
import os
import re
import subprocess
import sys
import time

import pytest
from support import ROOT

from attention_jax.errors import UserError
from attention_jax.launcher import compilation, experiments
from attention_jax.launcher.modes import MODES
from attention_jax.runs.experiment import Request
from configs import kernel_regression, language_model

SMALL = {"layers": 2, "width": 16, "heads": 2, "kv_heads": 2, "feed_forward": 32, "stacked": True}


def compile_it(config, tmp_path, **kwargs):
    request = Request(config, tmp_path / "w", time.perf_counter(), False, **kwargs)
    MODES["compile"](experiments.load(config.experiment), request)


def small(**mesh):
    config = language_model.get_config("cpu,pieces")
    config.model.update(SMALL)
    config.data.update({"length": 8, "batch": 3, "vocabulary": 50})
    config.mesh.update(mesh)
    return config


def test_it_tells_the_mesh_the_memory_and_what_is_sent_and_writes_nothing(tmp_path, capsys):
    compile_it(small(fsdp=2), tmp_path)
    out = capsys.readouterr().out
    assert "machine           this one: 2 × cpu" in out
    assert "mesh              population 1 × data 1 × fsdp 2 × context 1 × tensor 1" in out
    assert "vocabulary        50: config.data.vocabulary, for no data are read" in out
    assert "batch             4 rows, 1 of them padding: the batch has 3" in out
    assert re.search(r"\nfits +yes: ", out)
    assert re.search(r"\n all-gather +\| +[1-9]", out)
    assert re.search(r"\n all-reduce +\| +[1-9]", out)
    assert not (tmp_path / "w").exists()


def test_what_does_not_fit_is_refused_after_the_numbers(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(compilation, "free_memory", lambda: 2**30)
    monkeypatch.setattr(compilation, "_compiled", lambda *_: (compilation.Memory("temporaries", 3 * 2**30), ""))
    with pytest.raises(
        UserError, match=r"^does not fit: 3\.00 GiB a device, which has 1\.00 GiB\. Spread .*accumulate"
    ):
        compile_it(small(), tmp_path)
    assert "\nfits              no: 3.00 GiB a device, which has 1.00 GiB" in capsys.readouterr().out


def test_a_compiler_that_runs_out_of_memory_is_quoted():
    told = compilation._exhausted(
        "RESOURCE_EXHAUSTED: E1000: Ran out of memory on HBM, the total memory required for HLO temporaries (2.5G) "
        "exceeds available HBM (1.5G). HLO module: jit_train_step.\nmore"
    )
    assert told.total == 2.5 * 2**30
    assert told.told.endswith(": Ran out of memory on HBM, the total memory required for HLO temporaries (2.5G) "
                              "exceeds available HBM (1.5G).")  # fmt: skip


def test_an_experiment_without_a_training_step_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"^config.experiment='kernel_regression': has no training step to compile.$"):
        compile_it(kernel_regression.get_config(), tmp_path)


def test_a_topology_is_for_compiling_alone(tmp_path):
    command = [sys.executable, ROOT / "launch.py", "--config=configs/nmt.py", "--mode=describe", "--topology=v5e:2x4"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (process.returncode, process.stderr) == (
        1,
        "error: --topology: is for --mode=compile, and this is describe.\n",
    )


@pytest.mark.slow
@pytest.mark.parametrize(("topology", "status"), [("v5e:2x4", 0), ("v5e:3x1", 1), ("v9:2x2", 1)])
def test_it_compiles_for_tpus_that_are_not_here(topology, status):
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("no libtpu: pip install libtpu")
    arguments = [f"--config.model.{name}={value}" for name, value in SMALL.items()]
    command = [sys.executable, "launch.py", "--config=configs/language_model.py:cpu,pieces", *arguments]
    more = ["--config.data.length=32", "--config.mesh.fsdp=2", "--config.mesh.tensor=2"]
    environment = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    process = subprocess.run(
        [*command, *more, "--mode=compile", f"--topology={topology}"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == status
    if status:
        assert process.stderr.startswith(f"error: --topology={topology}: ")
        assert process.stderr.count("\n") == 1
    else:
        assert "machine           v5e:2x4: 8 × TPU v5 lite\n" in process.stdout
        assert "fits              yes: " in process.stdout
        assert not process.stderr
