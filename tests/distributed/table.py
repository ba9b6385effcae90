"""How far the losses of one run differ on several meshes: `python -m tests.distributed.table [MODEL …]`.

Every model trains 50 steps on one device and on each mesh of forced host devices; a number is the largest relative
difference of a step's loss.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
from tabulate import tabulate

from tests.distributed.launching import MODELS, losses, run

STEPS = 50
MESHES = {
    "data 2": {"data": 2},
    "data 4": {"data": 4},
    "data 8": {"data": 8},
    "fsdp 2": {"data": 1, "fsdp": 2},
    "fsdp 8": {"data": 1, "fsdp": 8},
    "tensor 2": {"data": 1, "tensor": 2},
    "data 2, fsdp 2, tensor 2": {"data": 2, "fsdp": 2, "tensor": 2},
}


def difference(model, mesh, whole, folder):
    """The largest relative difference of a step's loss from those on one device."""
    run(model, folder, STEPS, int(np.prod(list(mesh.values()))), **{f"mesh__{axis}": n for axis, n in mesh.items()})
    return np.max(np.abs(np.array(losses(folder)) / whole - 1))


def main(models):
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for model in models:
            alone = Path(folder) / model
            run(model, alone, STEPS)
            whole = np.array(losses(alone))
            found = [
                difference(model, mesh, whole, alone.with_name(f"{model}-{name}")) for name, mesh in MESHES.items()
            ]
            rows.append([model, *(f"{value:.1e}" for value in found)])
    print(tabulate(rows, headers=["", *MESHES], tablefmt="github"))


if __name__ == "__main__":
    main(sys.argv[1:] or list(MODELS))
