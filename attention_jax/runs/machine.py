"""What a process sets up before it computes: precision, and a compilation cache that survives it."""

import contextlib
import hashlib
import os
import platform
from collections.abc import Iterator
from pathlib import Path

import jax
from ml_collections import ConfigDict


def set_up(precision: ConfigDict, *, debug_nans: bool = False) -> None:
    """Apply the config's matmul precision and turn the persistent compilation cache on."""
    jax.config.update("jax_default_matmul_precision", precision.matmul)
    jax.config.update("jax_debug_nans", debug_nans)
    if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
        jax.config.update("jax_compilation_cache_dir", str(cache_folder()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)


def cache_folder() -> Path:
    """The user's cache folder, one part for each kind of processor: compiled code does not travel."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    features = hashlib.sha256(_processor().encode()).hexdigest()[:12]
    return base / "attention_jax" / "compiled" / features


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return "".join(sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))}))


@contextlib.contextmanager
def profiled(folder: Path | None) -> Iterator[None]:
    """A trace of what runs inside, for TensorBoard or Perfetto, where a folder is given."""
    if folder is None:
        yield
        return
    with jax.profiler.trace(str(folder)):
        yield
