"""XLA flags that mend faulty releases of jaxlib. The first import of the package sets them, before JAX starts.

On a CPU, jaxlib 0.10.2 and 0.11.0 compute reductions by a faulty fusion. In 0.10.2,
`jit(vmap(lambda row: sum((W @ row) ** 2)))` over 40,000 rows with W of 3×3 gives 7,232 wrong rows (jax#39103);
reductions of arrays of seven and more axes end the process in 0.10.2 (jax#39257, jax#40412) and in 0.11.0
(jax#39257). Without that fusion both are right; 0.11.1 to 0.12.0.1 are right with it.

On NVIDIA's GPUs the same releases add into a table by compare-and-swap loops where the hardware has an atomic
addition: where indices repeat, as words do in the gradient of an embedding, 450 to 2,000 times slower (xla#46225,
jax#38806). An option of LLVM's brings the addition back: compiled for an A100, the gradient of an embedding has
`atom.add.f32` with it, as in 0.11.1, and `atom.cas` without.
"""

import os
import sys
import warnings
from importlib import metadata
from pathlib import Path

FAULTY = ("0.10.2", "0.11.0")
FUSION = "xla_cpu_experimental_ynn_fusion_type"
ATOMICS = "nvptx-allow-ftz-atomics"
FLAGS = {FUSION: f"--{FUSION}=-reduce", ATOMICS: f"--xla_backend_extra_options=-{ATOMICS}"}
MENDED_BY = {"jaxlib": FUSION, "jax-cuda12-pjrt": ATOMICS, "jax-cuda13-pjrt": ATOMICS}


def mend() -> None:
    """Add the flags to XLA_FLAGS that the installed releases need and the user has not set; warn where JAX has started.

    JAX reads them once, when it starts. They are in the keys of its compilation cache, which therefore hands out no
    program that was compiled without them.
    """
    given = _given()
    missing = [FLAGS[option] for option in needed() if option not in given]
    if missing and _is_started():
        warnings.warn(
            f"jaxlib {_version('jaxlib')} computes wrongly on a CPU, or slowly on a GPU, unless told not to before it "
            f"starts: import attention_jax before JAX is used, or set XLA_FLAGS='{' '.join(missing)}'.",
            RuntimeWarning,
            stacklevel=3,  # the line that imports the package
        )
    elif missing:
        os.environ["XLA_FLAGS"] = " ".join([given, *missing]).strip()


def needed() -> list[str]:
    """The options that mend the installed releases."""
    return list(dict.fromkeys(option for name, option in MENDED_BY.items() if _version(name) in FAULTY))


def _given() -> str:
    """The user's flags; XLA_FLAGS may also name a file of them."""
    given = os.environ.get("XLA_FLAGS", "").strip()
    return given if given.startswith("-") or not given else Path(given).read_text(encoding="utf-8").strip()


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _is_started() -> bool:
    bridge = sys.modules.get("jax._src.xla_bridge")
    return bridge is not None and bridge.backends_are_initialized()
