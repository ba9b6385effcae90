"""One run on one device and on a mesh of eight."""

import numpy as np
import pytest

from tests.distributed.launching import MODELS, losses, run

MIXED = {"mesh__data": 2, "mesh__fsdp": 2, "mesh__tensor": 2}


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_a_run_has_the_same_losses_on_a_mixed_mesh_of_eight_devices(tmp_path, model):
    run(model, tmp_path / "one", 20)
    run(model, tmp_path / "eight", 20, 8, **MIXED)
    np.testing.assert_allclose(losses(tmp_path / "eight"), losses(tmp_path / "one"), rtol=1e-5)


@pytest.mark.slow
def test_a_run_goes_on_on_other_devices_to_losses_equal_to_rounding(tmp_path):
    same = {"optimizer__warmup_steps": 4, "optimizer__decay_steps": 24}
    same |= {"train__evaluate_every": 8, "train__checkpoint_every": 8}
    for steps, devices, mesh in ((8, 8, {"mesh__data": 8}), (16, 4, {"mesh__data": 1, "mesh__fsdp": 4}), (24, 1, {})):
        run("transformer", tmp_path / "moved", steps, devices, **same, **mesh)
    run("transformer", tmp_path / "whole", 24, **same)
    np.testing.assert_allclose(losses(tmp_path / "moved"), losses(tmp_path / "whole"), rtol=1e-5)
