"""What devices can do at most, by their makers' data sheets: dense bfloat16 matrix products, and how much they hold."""

import re
from collections.abc import Mapping

import jax

# By the first words of `device_kind`, the longest that fit. A device is what JAX calls so: of TPU v2 and v3 one of a
# chip's two cores. FLOP a second; sparsity is not counted.
PEAKS = {
    "Tesla V100-SXM2": 125e12,  # float16
    "Tesla V100-PCIE": 112e12,
    "NVIDIA A100": 312e12,
    "NVIDIA L4": 121e12,
    "NVIDIA L40": 181e12,
    "NVIDIA L40S": 362e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H100 NVL": 835e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H200": 989e12,
    "NVIDIA H200 NVL": 835e12,
    "NVIDIA B200": 2250e12,
    "TPU v2": 22.5e12,
    "TPU v3": 61.5e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5": 459e12,
    "TPU v6 lite": 918e12,
}
MEMORY = {  # GiB
    "TPU v2": 8,
    "TPU v3": 16,
    "TPU v4": 32,
    "TPU v5 lite": 16,
    "TPU v5": 95,
    "TPU v6 lite": 32,
}


def peak_flops(kind: str) -> float | None:
    """A device's peak, by its `device_kind`; None where it is not known, as for CPUs."""
    return _of_kind(PEAKS, kind)


def memory_bytes(kind: str) -> float | None:
    """The bytes of a device's own memory (HBM), by its `device_kind`; None where it is not known."""
    found = _of_kind(MEMORY, kind)
    return found and found * 2**30


def peak_of_all() -> float | None:
    """The peak of all devices together; None where it is not known."""
    peak = peak_flops(jax.devices()[0].device_kind)
    return peak and peak * jax.device_count()


def _of_kind(table: Mapping[str, float], kind: str) -> float | None:
    fitting = [name for name in table if re.match(rf"{re.escape(name)}(?![A-Z0-9])", kind)]
    return table[max(fitting, key=len)] if fitting else None
