"""What devices can do at most: the dense bfloat16 matrix products of their makers' data sheets, in FLOP a second."""

import jax

# By the beginning of `device_kind`, the longest that fits. Sparsity is not counted.
PEAKS = {
    "NVIDIA V100": 125e12,  # float16
    "NVIDIA A100": 312e12,
    "NVIDIA L4": 121e12,
    "NVIDIA L40S": 362e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H100 PCIe": 756e12,
    "NVIDIA H200": 989e12,
    "NVIDIA B200": 2250e12,
    "TPU v2": 45e12,
    "TPU v3": 123e12,
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5": 459e12,
    "TPU v6 lite": 918e12,
}


def peak_flops(kind: str) -> float | None:
    """A device's peak, by its `device_kind`; None where it is not known, as for CPUs."""
    fitting = [name for name in PEAKS if kind.startswith(name)]
    return PEAKS[max(fitting, key=len)] if fitting else None


def peak_of_all() -> float | None:
    """The peak of all devices together; None where it is not known."""
    peak = peak_flops(jax.devices()[0].device_kind)
    return peak and peak * jax.device_count()
