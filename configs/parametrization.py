"""Does the best learning rate of a narrow model serve a wide one? Rates by width, standard and maximal update.

    python launch.py --config=configs/parametrization.py:core
    python launch.py --config=configs/parametrization.py:core --config.data.path=PATH/input.txt
    python launch.py --config=configs/parametrization.py:small
    python launch.py --config=configs/parametrization.py:smoke

`small` is of one layer, over a sixteenfold width, in six minutes; `smoke` takes two minutes. A sweep of
`language_model.py`. The feed-forward is four times as wide as the model; heads are as many at every width.
"""

import runpy
from pathlib import Path

from attention_jax.sweeps.space import grid, product, seeds, zipped

LM = runpy.run_path(str(Path(__file__).with_name("language_model.py")))

CORE: dict = {
    "widths": (64, 128, 256, 512),
    "rates": tuple(round(2.0**power, 12) for power in range(-14, -2)),
    "seeds": 3,
    "model": {"layers": 2, "heads": 4, "kv_heads": 4},
    "data": {"length": 64, "batch": 16},
    "train": {"steps": 1000, "evaluate_every": 1000, "checkpoint_every": 1000},
}
SMOKE: dict = CORE | {
    "widths": (16, 32, 64),
    "rates": tuple(2.0**power for power in (-9, -7, -5, -3)),
    "seeds": 2,
    "model": {"layers": 1, "heads": 2, "kv_heads": 2},
    "data": {"length": 32, "batch": 8},
    "train": {"steps": 150, "evaluate_every": 150, "checkpoint_every": 150},
}
SMALL: dict = SMOKE | {
    "widths": (16, 64, 256),
    "rates": tuple(2.0**power for power in range(-10, -2)),
    "seeds": 5,
}
VARIANTS = {"core": CORE, "small": SMALL, "smoke": SMOKE}

OPTIMIZER = {"schedule": "constant", "warmup_steps": 20, "weight_decay": 0.0, "clip_norm": 1e9, "b2": 0.99}


def get_config(variant="core"):
    if variant not in VARIANTS:
        raise ValueError(f"no variant {variant!r}: choose one of {', '.join(VARIANTS)}.")
    chosen = VARIANTS[variant]
    base = chosen["widths"][0]
    config = LM["get_config"]("cpu,characters")
    config.model.update(width=base, feed_forward=4 * base, dropout_sites=(), **chosen["model"])
    config.model.update(base_width=base, base_heads=config.model.heads)
    config.data.update(chosen["data"])
    config.optimizer.update(LM["OPTIMIZER"] | OPTIMIZER)
    config.train.update(log_every=50, **chosen["train"])
    config.evaluate.tokens = 16384
    config.generate.tokens = 100
    config.statistics.rows = 0
    within = ("model.parametrization", "model.width", "model.feed_forward")
    config.sweep.update(by_default=True, metric="validation.loss", within=within)
    return config


def sweep(variant="core"):
    chosen = VARIANTS[variant]
    return product(
        grid("model.parametrization", ("standard", "mup")),
        zipped(
            grid("model.width", chosen["widths"]),
            grid("model.feed_forward", tuple(4 * width for width in chosen["widths"])),
        ),
        grid("optimizer.learning_rate", chosen["rates"]),
        seeds(chosen["seeds"]),
    )
