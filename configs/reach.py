"""How far does attention reach? Needles, recall, variables and frequent words, at up to 16 times the trained length.

    python launch.py --config=configs/reach.py:core
    python launch.py --config=configs/reach.py:smoke
    python launch.py --config=configs/reach.py:crossed
    python launch.py --config=configs/reach.py:recall
    python launch.py --config=configs/reach.py:small
    python launch.py --config=configs/reach.py:states
    python launch.py --config=configs/reach.py:states --sweep=mixers --config.optimizer.learning_rate=1e-3
    python launch.py --config=configs/reach.py:encodings
    python launch.py --config=configs/reach.py --config.model.positions=alibi --config.data.task=needles --mode=train

It is a sweep unless --mode says otherwise. `core` is encodings by tasks, and `recall` mixers by width: what recalls how
much of an input, by the bytes that it holds of it; `small` is that for inputs of half the length and models of an
eighth of the size, with more seeds. `states` is such inputs, by mixers with a state and their heads, in models of width
64: the more heads, the fewer bytes has a state, and a mixer's parameters stay within 2%; `--sweep=mixers` is those of
two heads alone, whose states have the bytes of attention's keys and values of 16 tokens. `encodings` is `core` in small
models, but for recall, and `crossed` is in these encodings by sinks by windows, and by families.
"""

import runpy
from pathlib import Path

from attention_jax.sweeps.space import chain, grid, product, seeds, zipped

POSITIONS = Path(__file__).with_name("positional_encoding.py")

MODEL = {
    "layers": 4,
    "backend": "chunked/auto",  # blocks where they can: nothing then grows with the square of the length
}

DATA = {
    "task": "associative_recall",  # needle, needles, variable_tracking, frequent_words; any of data/algorithmic.py
    "length": 32,  # of the longest input in training
    "shortest": 16,
    "symbols": 48,  # a third each are keys, values and noise: no input has more keys
    "factors": (1.0, 2.0, 4.0, 8.0, 16.0),  # times `length`: what is measured
    "examples": 128,  # at each
}

ENCODINGS = ("none", "sinusoidal", "rotary", "alibi", "t5", "randomized_sinusoidal:longest=1100")
TASKS = ("needle", "needles", "associative_recall", "variable_tracking", "frequent_words")
MIXERS = {"rotary": ("attention", "retention"), "none": ("linear", "gated_linear", "delta", "gru", "convolution")}
RECALLING = {"recall": ((16, 32, 64), 3), "small": ((8, 16, 32), 5)}  # widths, and how many seeds
HEADS = (1, 2, 4, 8)  # of a mixer, whose state has width² / heads numbers a layer, of `linear` width more
NARROW = {"width": 32, "heads": 2, "kv_heads": 2, "feed_forward": 64}
LAYER = {"width": 16, "heads": 2, "kv_heads": 2, "feed_forward": 32}

# What a variant changes.
VARIANTS: dict[str, dict] = {
    "core": {},
    "recall": {
        "model": {"layers": 2},
        "data": {"shortest": 8, "factors": (0.5, 1.0, 2.0, 4.0)},
        "train": {"steps": 4000, "evaluate_every": 4000, "checkpoint_every": 4000},
    },
    "small": {
        "model": {"layers": 2, "heads": 2, "kv_heads": 2, "feed_forward": 64},
        "data": {"length": 16, "shortest": 4, "symbols": 24, "factors": (0.5, 1.0, 2.0, 4.0)},
    },
    "encodings": {"model": NARROW, "data": {"symbols": 24}},
    "crossed": {"model": NARROW, "data": {"symbols": 24, "task": "needles"}},
    "smoke": {
        "model": {"layers": 1, **LAYER},
        "train": {"steps": 100, "log_every": 50, "evaluate_every": 100, "checkpoint_every": 100},
        "data": {"length": 16, "shortest": 8, "symbols": 24, "examples": 16, "batch": 16},
    },
}
VARIANTS["states"] = VARIANTS["small"]


def get_config(variant="core"):
    if variant not in VARIANTS:
        raise ValueError(f"no variant {variant!r}: choose one of {', '.join(VARIANTS)}")
    config = runpy.run_path(str(POSITIONS))["get_config"]("core")
    config.experiment = "reach"
    config.statistics = {"rows": 64}  # texts of each length whose weights are told; 0: none
    for name, section in {"model": MODEL, "data": DATA}.items():
        config[name].update(section)
    for name, section in VARIANTS[variant].items():
        config[name].update(section)
    return config


def sweep(variant="core", name=""):
    if name and (variant, name) != ("states", "mixers"):
        raise ValueError(f"variant {variant!r} has no sweep {name!r}: states has mixers")
    if variant == "smoke":
        return product(grid("model.positions", ("none", "alibi")), grid("data.task", ("needle", TASKS[2])), seeds(2))
    if variant == "crossed":
        sinks = grid("model.normalize", ("softmax", "learned_sink"))
        windows = grid("model.pattern", ("all", "local:window=16", "local:window=16,first=1"))
        families = grid("model.family", ("forgetting", "differential", "selective"))
        plain, whole = grid("model.family", ("plain",)), product(sinks[:1], windows[:1])
        crossed = chain(product(sinks, windows, plain), product(whole, families))
        return product(grid("model.positions", ("rotary", "alibi", "t5")), crossed, seeds(3))
    if variant == "encodings":
        tasks = ("needle", "needles", "variable_tracking", "frequent_words")
        return product(grid("model.positions", ENCODINGS[:5]), grid("data.task", tasks), seeds(4))
    turned, others = (
        product(grid("model.mixer", mixers), grid("model.positions", (positions,)))
        for positions, mixers in MIXERS.items()
    )
    if variant in RECALLING:
        widths, trained = RECALLING[variant]
        return product(chain(turned, others), grid("model.width", widths), seeds(trained))
    if variant == "states":
        heads = zipped(grid("model.heads", HEADS), grid("model.kv_heads", HEADS))
        own = heads[1:2] if name else heads
        attention, states = product(turned[:1], heads[1:2]), product(chain(turned[1:], others[:3]), own)
        return product(chain(attention, states), seeds(5))
    return product(grid("model.positions", ENCODINGS), grid("data.task", TASKS), seeds(5))
