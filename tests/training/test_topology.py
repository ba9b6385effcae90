"""Machines that are not here, and what devices can do."""

import importlib.util

import jax
import pytest

from attention_jax.errors import UserError
from attention_jax.training.peaks import MEMORY, PEAKS, memory_bytes, peak_flops
from attention_jax.training.topology import devices_of


def test_without_a_name_they_are_this_machines():
    assert devices_of("") == jax.devices()


def test_libtpu_is_asked_for_in_one_line(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r'^libtpu is not installed.*: pip install "attention_jax\[compile\]".$'):
        devices_of("v5e:2x4")


@pytest.mark.parametrize(
    ("kind", "flops", "gigabytes"),
    [("TPU v5 lite", 197e12, 16), ("TPU v5p", 459e12, 95), ("TPU v6 lite", 918e12, 32), ("TPU v4", 275e12, 32)],
)
def test_a_kind_of_tpu_has_a_peak_and_a_memory(kind, flops, gigabytes):
    assert (peak_flops(kind), memory_bytes(kind)) == (flops, gigabytes * 2**30)


def test_the_longest_name_that_fits_is_meant():
    assert peak_flops("NVIDIA H100 PCIe") == 756e12
    assert peak_flops("NVIDIA H100 NVL") == 835e12
    assert peak_flops("NVIDIA L40") == 181e12
    assert peak_flops("NVIDIA L400") is None  # another device, whose name begins alike
    assert peak_flops("NVIDIA A100-SXM4-80GB") == 312e12
    assert peak_flops("NVIDIA H100 80GB HBM3") == 989e12
    assert peak_flops("cpu") is memory_bytes("cpu") is None


def test_every_tpu_with_a_memory_has_a_peak():
    assert {kind for kind in PEAKS if kind.startswith("TPU")} == set(MEMORY)
