"""Texts over four devices, and a model that is trained on them."""

import os
import subprocess
import sys

import numpy as np
import pytest

from tests.distributed.launching import ROOT, losses, run

pytestmark = pytest.mark.slow


def test_what_holds_on_two_devices_holds_on_four():
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "tests/backends/test_context.py"]
    environment = {**os.environ, "ATTENTION_JAX_TEST_DEVICES": "4"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("backend", ["ring", "gathered"])
def test_a_language_model_has_the_same_losses_where_its_tokens_lie_over_devices(tmp_path, backend):
    run("language_model", tmp_path / "one", 12)
    for name, devices, mesh in (("alone", 4, {"context": 4}), ("mixed", 8, {"context": 2, "fsdp": 2, "tensor": 2})):
        asked = {"mesh__data": 1, **{f"mesh__{axis}": size for axis, size in mesh.items()}, "model__backend": backend}
        run("language_model", tmp_path / name, 12, devices, **asked)
        np.testing.assert_allclose(losses(tmp_path / name), losses(tmp_path / "one"), rtol=1e-5)
