"""Which position encoding, and does it extrapolate? A small language model, each encoding on each task, over seeds.

    python launch.py --config=configs/positional_encoding.py:core
    python launch.py --config=configs/positional_encoding.py:smoke
    python launch.py --config=configs/positional_encoding.py:deeper
    python launch.py --config=configs/positional_encoding.py:text --config.data.path=PATH/input.txt
    python launch.py --config=configs/positional_encoding.py:translation
    python launch.py --config=configs/positional_encoding.py --config.model.positions=alibi --mode=train

It is a sweep unless --mode says otherwise. Everything in ops/positions.py and data/algorithmic.py runs by name.
"""

import runpy
from pathlib import Path

from ml_collections import ConfigDict

from attention_jax.sweeps.settings import POPULATION, SWEEP
from attention_jax.sweeps.space import grid, product, seeds, zipped
from attention_jax.training.hyper import UNSET
from attention_jax.training.placement import MESH

NMT = Path(__file__).with_name("nmt.py")
LM = runpy.run_path(str(Path(__file__).with_name("language_model.py")))

# Rows of a learned table past the trained lengths stay as they were drawn.
SIZE = {"layers": 2, "width": 64, "feed_forward": 256, "positions": "none", "max_length": 129}
MODEL = LM["TRANSFORMER"] | SIZE | {"dropout_sites": ("residual",)}
PARAMETRIZATION = LM["PARAMETRIZATION"] | {"base_width": 64}

ALGORITHMIC = {
    "source": "algorithmic",
    "task": "copy",  # reverse, sort, last_occurrence, addition, addition_reversed, parity, modular_sum, dyck
    "length": 16,  # of the longest input in training
    "shortest": 3,
    "symbols": 16,
    "batch": 32,
    "factors": (1.0, 1.25, 1.5, 2.0, 3.0, 4.0),  # times `length`: what is measured
    "examples": 256,  # at each
    "seed": 0,  # of what is measured
}

TEXT = {
    "source": "text",
    "path": "",  # a file; empty: generated sentences
    "task": "text",
    "tokenizer": "characters",  # or pieces: unigram, bpe
    "vocabulary": 512,  # of pieces, at most: 256 are single bytes
    "held_out": 0.1,  # the last share of the text
    "length": 64,  # of the context in training
    "batch": 32,
    "factors": (1.0, 2.0, 4.0, 8.0, 16.0),  # times `length`: what is measured
    "evaluated": 32768,  # held-out tokens, in windows side by side
    "sampled": 512,  # held-out tokens that are measured with all of their context
    "seed": 0,
}

OPTIMIZER = {
    "name": "adam",  # adamw, sgd, lion, adafactor, muon: training/optimizer.py
    "schedule": "cosine",
    "learning_rate": 3e-3,
    "warmup_steps": 100,
    "decay_steps": 0,  # where the decay ends; 0: at train.steps
    "final_fraction": 0.05,
    "clip_norm": 1.0,
    "weight_decay": 0.0,
    "dropout": 0.0,
    "label_smoothing": 0.0,
    **UNSET,  # numbers that not every optimizer has; -1: the chosen one's own default
    "b2": 0.98,
}

TRAIN = {
    "steps": 2000,
    "steps_per_call": 50,
    "accumulate": 1,  # micro-batches of each batch, for less memory
    "ema": 0.0,  # more: the decay of a running mean of the parameters, which is measured too, as ema.…
    "skip_nonfinite": 0,  # more: steps whose gradient is not finite are left out; so many in a row end training
    "log_every": 100,
    "evaluate_every": 2000,  # once, at the end
    "checkpoint_every": 2000,
    "checkpoint_minutes": 0,  # more: also where the last is so many minutes old
    "keep_last": 1,
    "best_by": "train.loss",
}

ENCODINGS = ("none", "sinusoidal", "learned", "rotary", "alibi", "t5", "shaw", "randomized_sinusoidal")
PUBLISHED = ("none", "sinusoidal", "rotary", "alibi", "t5")  # whose order is known: Kazemnejad et al. 2023
TRANSLATING = ("none", "sinusoidal", "learned", "binary", "rotary", "alibi", "t5", "shaw")
TASKS = ("copy", "reverse", "sort", "last_occurrence")


# What a variant changes, and its seeds.
VARIANTS: dict[str, dict] = {
    "core": {"seeds": 5},
    "smoke": {
        "seeds": 2,
        "model": {"layers": 1, "width": 16, "heads": 2, "kv_heads": 2, "feed_forward": 32},
        "train": {"steps": 100, "log_every": 50, "evaluate_every": 100, "checkpoint_every": 100},
        "data": {"length": 8, "examples": 32, "batch": 16},
    },
    "deeper": {"seeds": 3, "model": {"layers": 4}},
    "text": {
        "seeds": 3,
        "model": {"layers": 3, "width": 128, "feed_forward": 512, "max_length": 1024},
        "train": {"steps": 1000, "evaluate_every": 1000, "checkpoint_every": 1000},
        "optimizer": {"dropout": 0.1},
    },
}


def get_config(variant="core"):
    if variant == "translation":
        return _translation()
    if variant not in VARIANTS:
        raise ValueError(f"no variant {variant!r}: choose one of {', '.join(VARIANTS)}, translation")
    data = TEXT if variant == "text" else ALGORITHMIC
    sections = {"model": MODEL | PARAMETRIZATION, "data": data, "optimizer": OPTIMIZER, "train": TRAIN}
    if variant == "text":
        sections["generate"] = LM["GENERATE"] | {"context": data["length"]}
    return ConfigDict(
        {
            "experiment": "positional_encoding",
            "seeds": (0,),
            **{name: section | VARIANTS[variant].get(name, {}) for name, section in sections.items()},
            "evaluate": {"positions": ""},  # as trained; or what has the same parameters: rotary:scaling=ntk,factor=4
            "precision": {"matmul": "default", "dtype": "float32", "param_dtype": "float32"},
            "mesh": MESH,
            "distributed": "off",  # hosts: auto (SLURM, TPU, GKE, Open MPI), or the first one's HOST:PORT
            "population": POPULATION,
            "sweep": SWEEP | {"by_default": True, "engine": "processes", "within": ("data.task",)},
        }
    )


def _translation():
    """A small Transformer on the embedded corpus."""
    config = runpy.run_path(str(NMT))["get_config"]("transformer_book,embedded")
    config.model.kwargs.update({"width": 64, "feed_forward": 128})
    config.train.update({"steps": 700, "evaluate_every": 350, "checkpoint_every": 350})
    config.sweep.update({"by_default": True, "engine": "processes", "metric": "test.bleu"})
    return config


def sweep(variant="core"):
    if variant == "translation":
        sides = [grid(f"model.kwargs.{side}_positions", TRANSLATING) for side in ("encoder", "decoder")]
        return product(zipped(*sides), seeds(3))
    names = PUBLISHED if variant in ("deeper", "text") else ENCODINGS
    tasks = ("text",) if variant == "text" else TASKS
    return product(grid("model.positions", names), grid("data.task", tasks), seeds(VARIANTS[variant]["seeds"]))
