"""What the installed jaxlib computes is right, as far as programs go that some release has got wrong."""

import os
import subprocess
import sys
import time
from importlib import metadata

import canary
import jax
import jax.numpy as jnp
import pytest
from support import ROOT

from attention_jax import _jaxlib

IS_FAULTY = metadata.version("jaxlib") in _jaxlib.FAULTY


def python(statements, **environment):
    """A process of a user, who sets no flags."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("XLA_FLAGS", *environment)}
    return subprocess.run(
        [sys.executable, "-c", statements],
        env={**inherited, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "JAX_PLATFORMS": "cpu", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def flags_after_import(given, first="import os"):
    process = python(f"{first}; import attention_jax, os; print(os.environ.get('XLA_FLAGS', ''))", XLA_FLAGS=given)
    assert process.returncode == 0, process.stderr
    return process.stdout.strip(), process.stderr


@pytest.mark.parametrize("name", canary.REDUCTIONS)
@pytest.mark.parametrize("rows", canary.ROWS)
@pytest.mark.parametrize("shape", canary.SHAPES)
def test_vmapped_products_and_their_gradients_are_those_of_float64(shape, rows, name):
    assert canary.wrong_rows(shape, rows, name) == [0, 0]


def test_after_importing_the_package_alone_everything_is_computed_rightly():
    process = python("import attention_jax, canary; canary.check()")
    assert process.returncode == 0, process.stderr


@pytest.mark.parametrize("statements", ["import launch", "import experiments._multi30k", "import configs.nmt"])
def test_whatever_is_started_has_the_flag_before_jax_starts(statements):
    flags, err = flags_after_import("", statements)
    assert (_jaxlib.FUSION in flags) == IS_FAULTY
    assert "RuntimeWarning" not in err


def test_the_package_does_not_import_jax():
    process = python("import attention_jax, sys; assert 'jax' not in sys.modules")
    assert process.returncode == 0, process.stderr


def test_where_jax_was_started_before_the_package_warns_and_leaves_the_flags():
    flags, err = flags_after_import("", "import jax; jax.devices()")
    assert flags == ""
    assert ("<string>:1: RuntimeWarning: jaxlib" in err) == IS_FAULTY


def test_jax_may_be_imported_before_where_it_was_not_started():
    flags, err = flags_after_import("", "import jax")
    assert (_jaxlib.FUSION in flags) == IS_FAULTY
    assert not err


def test_the_users_own_flags_stay(tmp_path):
    added = "".join(f" {_jaxlib.FLAGS[option]}" for option in _jaxlib.needed())
    given = "--xla_force_host_platform_device_count=3"
    assert flags_after_import(given)[0] == given + added
    own = f"--{_jaxlib.FUSION}=-dot"
    assert [flag for flag in flags_after_import(own)[0].split() if _jaxlib.FUSION in flag] == [own]
    file = tmp_path / "flags"
    file.write_text(f"{given}\n")
    assert flags_after_import(str(file))[0] == (given + added if added else str(file))


@pytest.mark.parametrize(
    ("versions", "options"),
    [
        ({"jaxlib": "0.10.2"}, {_jaxlib.FUSION}),
        ({"jaxlib": "0.11.0", "jax-cuda13-pjrt": "0.11.0"}, {_jaxlib.FUSION, _jaxlib.ATOMICS}),
        ({"jaxlib": "0.10.2", "jax-cuda12-pjrt": "0.10.2"}, {_jaxlib.FUSION, _jaxlib.ATOMICS}),
        ({"jaxlib": "0.11.1", "jax-cuda13-pjrt": "0.11.1"}, set()),
        ({"jaxlib": "0.12.0.1"}, set()),
        ({}, set()),
    ],
)
def test_only_the_releases_with_a_fault_get_its_flag(monkeypatch, versions, options):
    monkeypatch.setattr(_jaxlib, "_version", versions.get)
    monkeypatch.setattr(_jaxlib, "_is_started", lambda: False)
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_extra_options=-one")
    _jaxlib.mend()
    flags = os.environ["XLA_FLAGS"].split()
    assert flags == [
        "--xla_backend_extra_options=-one",
        *(_jaxlib.FLAGS[name] for name in _jaxlib.FLAGS if name in options),
    ]
    _jaxlib.mend()
    assert os.environ["XLA_FLAGS"].split() == flags


@pytest.mark.parametrize("first", ["import jax", "import jax; jax.devices(); import attention_jax"])
def test_a_program_compiled_without_the_flag_is_not_handed_out_by_the_compilation_cache(tmp_path, first):
    count = "import canary; print(canary.wrong_rows((3, 3), 40_000, 'mean')[0])"
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
    }
    wrong = python(f"{first}; {count}", **cache)
    assert any(tmp_path.iterdir()), wrong.stderr
    right = python(f"import attention_jax; {count}", **cache)
    assert right.stdout == "0\n", (wrong.stdout, right.stderr)


@pytest.mark.skipif(jax.default_backend() != "gpu", reason="no GPU: JAX_PLATFORMS=cuda runs this where there is one")
def test_the_gradient_of_an_embedding_takes_no_longer_than_that_of_a_product_with_one_hot_vectors():
    vocabulary, width, tokens = 8_000, 255, 40_960  # atomic additions come in fours where the width allows it
    table, outer = jnp.zeros((vocabulary, width)), jnp.ones((tokens, width))
    words = jnp.zeros(tokens, jnp.int32)  # the same word again and again, as padding is
    looked_up = jax.jit(jax.grad(lambda table: jnp.sum(table[words] * outer)))
    multiplied = jax.jit(jax.grad(lambda table: jnp.sum((jax.nn.one_hot(words, vocabulary) @ table) * outer)))
    assert _seconds(looked_up, table) < 2 * _seconds(multiplied, table)


def _seconds(function, *args):
    def once():
        start = time.perf_counter()
        jax.block_until_ready(function(*args))
        return time.perf_counter() - start

    once()
    return min(once() for _ in range(5))
