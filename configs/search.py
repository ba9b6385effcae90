"""How much better than at random is a search, for the same budget of training?

    python launch.py --config=configs/search.py:table --workdir=runs/search-table
    python launch.py --config=configs/search.py --config.table=runs/search-table --workdir=runs/search
    python launch.py --config=configs/search.py:table --mode=search --workdir=runs/searched

The first trains the settings of a grid, learning rates × dropout on the embedded corpus with three seeds, as a sweep,
which is long: `:smoke` instead of `:table` trains a small one in a minute or two. The second plays searches over what
was trained, twenty times each, in seconds; any finished sweep over a grid of numbers will do. The third is a real
search over the same ranges; that is a mode of every config that says what to draw from, such as configs/nmt.py.
"""

import runpy
from pathlib import Path

from ml_collections import ConfigDict

from attention_jax.sweeps.space import grid, product, seeds

NMT = Path(__file__).with_name("nmt.py")
RATES = (3e-4, 6e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.5e-2, 3e-2)
DROPOUTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
LITTLE = {
    "model.kwargs.embedding": 32,
    "model.kwargs.hidden": 32,
    "optimizer.warmup_steps": 20,
    "train.steps": 400,
    "train.log_every": 50,
    "train.evaluate_every": 50,
    "train.checkpoint_every": 400,
    "train.best_by": "validation.loss",
    "sweep.by_default": True,
}
VARIANTS = ("regret", "table", "smoke")


def get_config(variant="regret"):
    if variant not in VARIANTS:
        raise ValueError(f"no variant {variant!r}: choose one of {', '.join(VARIANTS)}")
    if variant == "regret":
        return _regret()
    config = runpy.run_path(str(NMT))["get_config"]("bahdanau,embedded")
    config.update_from_flattened_dict(LITTLE)
    if variant == "smoke":
        config.train.steps = config.train.checkpoint_every = 80
        config.train.evaluate_every = config.train.log_every = 20
    return config


def search():
    """What --mode=search draws from: the ranges of the grid."""
    return runpy.run_path(str(NMT))["search"]()


def _regret():
    return ConfigDict(
        {
            "experiment": "search",
            "seeds": tuple(range(20)),  # repeats
            "table": "",  # the folder of a finished sweep
            "methods": ("random", "random+halving", "qmc", "tpe", "tpe+median", "tpe+halving"),
            "batch": 4,  # trials asked for at once
            "budgets": (4, 8, 12, 16, 20, 24, 28, 32),  # whole trainings
            "precision": {"matmul": "default"},
        }
    )


def sweep(variant="table"):
    if variant == "smoke":
        return product(grid("optimizer.learning_rate", RATES[1::2]), grid("optimizer.dropout", DROPOUTS[::2]), seeds(2))
    if variant == "table":
        return product(grid("optimizer.learning_rate", RATES), grid("optimizer.dropout", DROPOUTS), seeds(3))
    raise ValueError("the variant regret is a run: leave --mode out. Sweeps are table and smoke.")
