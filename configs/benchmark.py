"""How fast is it? Programs and their peers in turn, a value of each a round; nobody passes or fails.

    python launch.py --config=configs/benchmark.py:all --workdir=runs/benchmark --config.peers=PATH/bin/python
    python launch.py --config=configs/benchmark.py:train,decode --config.rounds=3

The variant names the parts: PARTS below, or "all". `config.peers` is a Python with what requirements-bench.txt names
(in an environment of its own: PyTorch and JAX each bring their libraries); peers that are not there are left out.
"""

import runpy
from pathlib import Path

from ml_collections import ConfigDict

from attention_jax.sweeps.settings import POPULATION, SWEEP

NMT, LM = (runpy.run_path(str(Path(__file__).with_name(name))) for name in ("nmt.py", "language_model.py"))
PARTS = (
    "train",
    "decode",
    "attention",
    "start",
    "sweep",
    "kernel_regression",
    "translate",
    "corpora",
    "scaling",
    "gpu",
)

# The shapes of PyTorch's own layers: norms after, dropout inside of them alone, sinusoids, tables apart.
LAYERS = {"norm_first": False, "dropout_sites": ("attention", "hidden", "residual"), "shared": "none"}
LAYERS |= {"backend": "reference"}
BOOK = NMT["MODELS"]["transformer_book"]["kwargs"] | LAYERS
SMALL = NMT["TRANSFORMER"] | NMT["SMALL"] | LAYERS
SEED_SIZE = NMT["RECURRENT"] | NMT["RECIPES"]["bahdanau", "tatoeba_600"]["kwargs"] | {"backend": "reference"}
SEED = {"dtype": "float32", "vocabulary": 200, "pairs": 600, "batch": 64, "length": 10, "steps_per_call": 10}

TRAIN = {
    "timed_alone": ("transformer_small",),  # whose matrix products are timed alone: smaller ones take less than a call
    "cases": {
        "bahdanau": {"what": "two GRU layers of 32", "model": {"name": "recurrent", "kwargs": SEED_SIZE}, **SEED},
        "transformer": {"what": "width 32, two layers", "model": {"name": "transformer", "kwargs": BOOK}, **SEED},
        "transformer_small": {
            "what": "width 256, three layers, 128 × 24 words of 8,000",
            "model": {"name": "transformer", "kwargs": SMALL},
            **{"dtype": "float32", "vocabulary": 8000, "pairs": 512, "batch": 128, "length": 24, "steps_per_call": 1},
        },
    },
}

DECODE = {
    "model": {"name": "transformer", "kwargs": SMALL},
    "dtype": "float32",
    "vocabulary": 8000,
    "length": 14,  # of a source
    "words": 20,  # of a translation
    "settings": ((64, 1), (1, 1), (64, 5)),  # sentences, beams
}

ATTENTION = {"backend": "chunked", "length": 16384, "heads": 1, "features": 64}

START = {
    "rounds": 3,  # of each, with caches of its own
    "cases": {
        "transformer_small": {
            "corpus": "multi30k",
            "config": "configs/nmt.py:transformer_small,multi30k",
            "flags": (
                "--config.train.steps=24",
                "--config.train.log_every=1",
                "--config.optimizer.warmup_steps=0",
                "--config.evaluate.test_beams=0",
                "--config.evaluate.bleu_tokens=13a",
            ),
        },
        "bahdanau": {
            "corpus": "tatoeba",
            "config": "configs/nmt.py:bahdanau,tatoeba_600",
            "flags": ("--config.train.steps=10", "--config.train.log_every=1"),
        },
    },
}

SWEEPING = {
    "corpus": "tatoeba",
    "config": "configs/nmt.py:bahdanau,tatoeba_600",
    "flags": ("--config.sweep.metric=validation.loss", "--config.sweep.engine=processes"),
    "steps": 500,
    "case": SEED,  # of the peer's pairs
    "grid": {
        "learning_rate": (1e-3, 2e-3, 5e-3, 1e-2),
        "rate": (0.0, 0.1, 0.3),  # of dropout
        "seed": (0, 1, 2, 3, 4),
    },
}

KERNEL_REGRESSION = {
    "kernels": ("gaussian", "boxcar", "triangular", "epanechnikov"),
    "points": 100_000,  # queries, and as many keys
    "width": 0.02,
    "blocks": (1, 4, 16, 64, 256),  # queries at once in NumPy, of which the best are taken
    "rounds": 2,
}

TRANSLATE = {
    "config": "configs/nmt.py:transformer_small,embedded",
    "flags": ("--config.train.steps=200", "--config.train.evaluate_every=200", "--config.train.checkpoint_every=200"),
    "sentences": 1000,
    "times": 11,  # as many, from which what translation takes without its start is told
    "beams": (1, 5),
}

CORPORA = {
    "pairs": (10_000, 100_000, 1_000_000, 10_000_000),
    "data": NMT["CORPORA"]["tsv"] | {"buckets": (8, 16), "max_length": 16},
}

SCALING = {
    "heads": 2,
    "features": 32,
    "tokens": (1024, 2048, 4096, 8192),
    "rows": (32, 64, 128, 256),
    "layers": (1, 2, 4, 8),
    "members": (1, 2, 4, 8),
    "devices": (2, 4, 8),
    "case": {
        "model": {"name": "transformer", "kwargs": BOOK | {"width": 64, "feed_forward": 128}},
        **{"dtype": "float32", "vocabulary": 4000, "pairs": 64, "batch": 64, "length": 16, "steps_per_call": 1},
    },
}

ROWS = {"dtype": "bfloat16", "vocabulary": 32768, "pairs": 256, "steps_per_call": 4}
GPU = {
    "parts": ("attention", "training", "members"),
    "product": 8192,  # rows and columns of the product whose rate others are beside
    "dtype": "bfloat16",
    "cases": {
        "transformer_big": {
            "model": {
                "name": "transformer",
                "kwargs": NMT["MODELS"]["transformer_big"]["kwargs"] | {"backend": "cudnn"},
            },
            **ROWS | {"batch": 128, "length": 128},
        },
        "a language model of 350M": {
            "model": {
                "name": "language_model",
                "kwargs": LM["TRANSFORMER"]
                | {"layers": 24, "width": 1024, "heads": 16, "kv_heads": 16, "feed_forward": 4096}
                | {"backend": "cudnn"},
            },
            **ROWS | {"batch": 16, "length": 1024},
        },
    },
    "attention": {
        "flex": {"backend": "flex", "beside": "cudnn", "encoding": "none"},
        "flex with ALiBi": {"backend": "flex", "beside": "reference", "encoding": "alibi"},
        "flex with T5's buckets": {"backend": "flex", "beside": "reference", "encoding": "t5"},
    },
    "tokens": 16384,  # of all texts of a batch together
    "heads": 16,
    "lengths": (2048, 4096, 8192, 16384),
    "sizes": (64, 128),  # of heads
    "members": 256,
}


def get_config(variant="all"):
    parts = PARTS if variant == "all" else tuple(variant.split(","))
    for part in parts:
        if part not in PARTS:
            raise ValueError(f"no part {part!r}: choose of {', '.join(PARTS)}, or all")
    return ConfigDict(
        {
            "experiment": "benchmark",
            "seeds": (0,),
            "parts": parts,
            "rounds": 5,  # values of each
            "seconds": 5.0,  # of a value, at least
            "peers": "",  # a Python that has them; empty: this one
            "data": {"tatoeba": "", "multi30k": ""},  # PATH/fra.txt and PATH/multi30k: what needs them is left out else
            "train": TRAIN,
            "decode": DECODE,
            "attention": ATTENTION,
            "start": START,
            "sweeping": SWEEPING,
            "kernel_regression": KERNEL_REGRESSION,
            "translate": TRANSLATE,
            "corpora": CORPORA,
            "scaling": SCALING,
            "gpu": GPU,
            "optimizer": NMT["OPTIMIZER"]
            | {"schedule": "constant", "warmup_steps": 0, "learning_rate": 0.005, "dropout": 0.1},
            "precision": {"matmul": "default"},
            "population": POPULATION,
            "sweep": SWEEP,
        }
    )
