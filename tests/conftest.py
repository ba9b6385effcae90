"""Two CPU devices, strict rank promotion, and real data where it lies beside the checkout."""

import gc
import os
import signal
import tempfile
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
DEVICES = os.environ.get("ATTENTION_JAX_TEST_DEVICES", "2")
# Programs that run once are not worth optimising: tests spend their time compiling.
FLAGS = f"--xla_force_host_platform_device_count={DEVICES} --xla_backend_optimization_level=0"
FLAGS += " --xla_cpu_parallel_codegen_split_count=1"  # nor worth cutting up, with a process a core
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}"

import attention_jax  # noqa: F401  # adds to XLA_FLAGS what the installed jaxlib needs

# What one test compiled, in this process or another, the next one finds.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", os.path.join(tempfile.gettempdir(), "attention_jax_tests"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")  # small programs too: they are thousands

for number in (signal.SIGINT, signal.SIGHUP):  # what a test starts hears them, also where this was told to ignore them
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, lambda *asked: None)

import jax
import numpy as np
import pytest
from support import DATA

from attention_jax.runs import machine

machine.LONG = 0.0  # seconds, as above
machine.give_back_freed_memory = lambda: None  # the next test takes it again

jax.config.update("jax_numpy_rank_promotion", "raise")
gc.set_threshold(100_000)  # tracing makes many objects and little garbage


def pytest_addoption(parser):
    parser.addoption("--one-a-file", action="store_true", help="of every file one test, not all")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Of each file one test, if it is asked for, of those that need the least made ready: the first, the second, …"""
    if config.getoption("--one-a-file"):
        by_file = {}
        for item in items:
            by_file.setdefault(item.path, []).append(item)
        kept = {simple[number % len(simple)] for number, simple in enumerate(map(_simplest, by_file.values()))}
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = [item for item in items if item in kept]


def _simplest(items):
    """Those with the fewest fixtures, of which some train models."""
    fewest = min(len(item.fixturenames) for item in items)
    return [item for item in items if len(item.fixturenames) == fewest]


MOST_MAPS = 45_000  # stretches of memory, of which a Linux process has 65,530 by default: every program takes some


@pytest.fixture(autouse=True, scope="module")
def room_for_programs():
    """Programs of earlier tests make room: a process that can map no more memory crashes where it loads the next."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()


@pytest.fixture
def random():
    return np.random.default_rng(0)


@pytest.fixture
def shared_data():
    """The folder of real corpora, or a skip that says how to name it."""
    if not DATA.is_dir():
        pytest.skip(f"no real corpora at {DATA}: set ATTENTION_JAX_DATA to their folder")
    return DATA
