"""Kernel regression: which kernel, which width, learned or not, over many draws of the data; attention as regression.

    python launch.py --config=configs/kernel_regression.py
    python launch.py --config=configs/kernel_regression.py:blobs --config.data.noise=1.2
    python launch.py --config=configs/kernel_regression.py:attention
    python launch.py --config=configs/kernel_regression.py:in_context
    python launch.py --config=configs/kernel_regression.py:in_context_apart
    python launch.py --config=configs/kernel_regression.py:in_context_smooth
    python launch.py --config=configs/kernel_regression.py:in_context_smoke

Variants: sine_power (default), sine_linear, blobs. With --mode=sweep: kernel, width, n and noise, over draws.
`attention` measures attention beside other answers to its question: lines, ridges, a step of gradient descent, the
delta rule. `in_context` is a sweep: Transformers of 1, 2 and 4 layers that are trained on such draws, beside the
estimators; the vector of a value has its key beside it, but in `in_context_apart`. Functions are linear, but in
`in_context_smooth` draws of a Gaussian process.
"""

import runpy
from pathlib import Path

from ml_collections import ConfigDict

from attention_jax.sweeps.settings import POPULATION, SWEEP
from attention_jax.sweeps.space import grid, product, seeds
from attention_jax.training.placement import MESH

POSITIONS = Path(__file__).with_name("positional_encoding.py")

DATA = {
    "sine_power": {"name": "sine_power", "n": 50, "noise": 0.5},
    "sine_linear": {"name": "sine_linear", "n": 40, "noise": 1.0},
    "blobs": {"name": "blobs", "n": 60, "noise": 0.9},
}

ESTIMATORS = (
    "attention",
    "dot_attention",
    "random_features",
    "local_linear",
    "kernel_ridge",
    "ridge",
    "gradient_step",
    "delta_rule",
)

ATTENTION = {
    "experiment": "regression",
    "seeds": (0,),
    "draws": 2000,
    "choosing": 500,  # other draws, on which the numbers of each estimator are chosen
    "queries": 8,  # of a draw
    "estimators": ("mean", *ESTIMATORS),
    "data": {"n": 32, "noise": 0.5, "dimensions": 4},  # where the others vary
    "vary": {"n": (8, 16, 32, 64, 128), "noise": (0.1, 0.25, 0.5, 1.0, 2.0), "dimensions": (1, 2, 4, 8, 16)},
    "identity": {"widths": (0.03, 0.1, 0.3, 1.0, 3.0)},  # times √dimensions
    "features": {"counts": (16, 32, 64, 128, 256, 512, 1024), "widths": (0.5, 1.0, 2.0, 4.0)},
    "precision": {"matmul": "highest"},
}

IN_CONTEXT = {
    "data": {
        "function": "linear",  # smooth
        "pairs": 16,  # before the query
        "dimensions": 4,
        "noise": 0.25,
        "tokens": "joined",  # whether a value's vector has its key beside it; apart: x₁ y₁ x₂ y₂ …
        "batch": 32,
    },
    "evaluate": {
        "estimators": ESTIMATORS,
        "pairs": (4, 8),  # before the query, and as many as in training
        "examples": 1000,  # draws
        "choosing": 200,  # other draws, on which the numbers of each estimator are chosen
        "seed": 0,
    },
    "train": {
        "steps": 2000,
        "steps_per_call": 100,
        "log_every": 100,
        "evaluate_every": 1000,
        "checkpoint_every": 2000,
    },
}
SMOKE = {
    "model": {"width": 16, "feed_forward": 32},
    "data": {"pairs": 4, "dimensions": 2, "batch": 16},
    "evaluate": {"estimators": ("attention", "ridge"), "pairs": (2,), "examples": 100, "choosing": 50},
    "train": {"steps": 200, "evaluate_every": 200, "checkpoint_every": 200},
}

IN_CONTEXTS: dict[str, dict] = {  # what differs
    "in_context": {},
    "in_context_apart": {"data": {"tokens": "apart"}},
    "in_context_smooth": {"data": {"function": "smooth"}},
    "in_context_smoke": SMOKE,
}


def get_config(variant="sine_power"):
    if variant == "attention":
        return ConfigDict({**ATTENTION, "population": POPULATION, "sweep": SWEEP})
    if variant in IN_CONTEXTS:
        return _in_context(IN_CONTEXTS[variant])
    if variant not in DATA:
        raise ValueError(f"no variant {variant!r}: choose one of {', '.join((*DATA, 'attention', *IN_CONTEXTS))}")
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


def _in_context(changed):
    """Layers, an optimizer and a timetable as those of position encodings, with what differs here."""
    base = runpy.run_path(str(POSITIONS))
    model = {name: value for name, value in base["MODEL"].items() if name not in ("vocabulary", "is_tied")}
    sections = {
        "model": model | {"layers": 1, "width": 32, "feed_forward": 64, "positions": "learned"},
        "optimizer": base["OPTIMIZER"],
        "train": base["TRAIN"] | IN_CONTEXT["train"],
        "data": IN_CONTEXT["data"],
        "evaluate": IN_CONTEXT["evaluate"],
    }
    return ConfigDict(
        {
            "experiment": "in_context",
            "seeds": (0,),
            **{name: section | changed.get(name, {}) for name, section in sections.items()},
            "precision": {"matmul": "default", "dtype": "float32", "param_dtype": "float32"},
            "mesh": MESH,
            "distributed": "off",  # hosts: auto (SLURM, TPU, GKE, Open MPI), or the first one's HOST:PORT
            "population": POPULATION,
            "sweep": SWEEP | {"by_default": True},
        }
    )


def sweep(variant="sine_power"):
    if variant in IN_CONTEXTS:
        return product(grid("model.layers", (1, 2, 4)), seeds(3))
    if variant == "attention":
        raise ValueError("the variant attention is a run: leave --mode out.")
    return product(
        [{"estimators": ("kernel",), "draws": 1}],
        grid("kernel.name", ("gaussian", "boxcar", "epanechnikov")),
        grid("data.n", (25, 50)),
        grid("kernel.width", (0.2, 0.5)),
        grid("data.noise", (0.25, 0.5)),
        seeds(200),
    )
