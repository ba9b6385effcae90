"""Slices of TPUs that are not here: their devices, for which a program can be compiled on any machine."""

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import numpy as np

from attention_jax.errors import UserError, require

EXAMPLES = ("v5e:16x16", "v5p:4x4x4", "v6e:8x8", "v4:2x2x4")
# What libtpu looks for on a TPU's own machine, and it is not one; and how much it says.
ALONE = {
    "TPU_SKIP_MDS_QUERY": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # nothing runs, so that others may compile or train beside it
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_MIN_LOG_LEVEL": "3",
}


def devices_of(topology: str) -> list[Any]:
    """The devices of the slice that `topology` names, as "v5e:16x16"; those of this machine where it is "".

    Raises UserError where libtpu, which compiles for them, is not installed, and for a slice that it does not know.
    """
    if not topology:
        return jax.devices()
    require("libtpu")
    os.environ.update(ALONE)
    jax.config.update("jax_platforms", "cpu")  # or JAX would look for a TPU here
    from jax.experimental.topologies import get_topology_desc

    try:
        return list(get_topology_desc(platform="tpu", topology_name=topology).devices)
    except jax.errors.JaxRuntimeError as error:
        reason = str(error).strip().splitlines()[0].partition(": ")[2].rstrip(".")
        raise UserError(f"--topology={topology}: {reason}. Name a slice, as {', '.join(EXAMPLES)}.") from None


def programs_for(devices: Sequence[Any]) -> AbstractContextManager:
    """Within it a program is for these devices, and not for this machine's, where it does not say for which."""
    return jax.sharding.use_abstract_mesh(jax.sharding.Mesh(np.array(devices[:1]), ("device",)).abstract_mesh)
