"""Kernel regression: which kernel, which width, learned or not, over many draws of the data.

    python launch.py --config=configs/kernel_regression.py
    python launch.py --config=configs/kernel_regression.py:blobs --config.data.noise=1.2

Variants: sine_power (default), sine_linear, blobs. With --mode=sweep: kernel, width, n and noise, over draws.
"""

from ml_collections import ConfigDict

from attention_jax.sweeps.settings import POPULATION, SWEEP
from attention_jax.sweeps.space import grid, product, seeds

DATA = {
    "sine_power": {"name": "sine_power", "n": 50, "noise": 0.5},
    "sine_linear": {"name": "sine_linear", "n": 40, "noise": 1.0},
    "blobs": {"name": "blobs", "n": 60, "noise": 0.9},
}


def get_config(variant="sine_power"):
    if variant not in DATA:
        raise ValueError(f"no variant {variant!r}: choose one of {', '.join(DATA)}")
    return ConfigDict(
        {
            "experiment": "kernel_regression",
            "seeds": (0,),
            "data": DATA[variant],
            "draws": 2000,
            # Any KERNEL_WIDTH is an estimator: boxcar_0.5, constant_1, epanechnikov_0.2, …
            "estimators": (
                "average",
                "gaussian_0.1",
                "gaussian_0.2",
                "gaussian_0.5",
                "gaussian_1",
                "boxcar_1",
                "triangular_1",
                "epanechnikov_1",
                "silverman",
                "learned",
                "learned_leaky",
            ),
            "kernel": {"name": "gaussian", "width": 0.2},  # what the estimator "kernel" is
            "learned": {"steps": 100, "learning_rate": 0.1},
            "precision": {"matmul": "highest"},
            "population": POPULATION,
            "sweep": SWEEP,
        }
    )


def sweep():
    return product(
        [{"estimators": ("kernel",), "draws": 1}],
        grid("kernel.name", ("gaussian", "boxcar", "epanechnikov")),
        grid("data.n", (25, 50)),
        grid("kernel.width", (0.2, 0.5)),
        grid("data.noise", (0.25, 0.5)),
        seeds(200),
    )
