"""Translation. One file for every model and corpus: the variant is MODEL,CORPUS.

    python launch.py --config=configs/nmt.py
    python launch.py --config=configs/nmt.py:bahdanau,tatoeba --config.data.path=PATH/fra.txt
    python launch.py --config=configs/nmt.py:bahdanau,tatoeba_600 --config.data.path=PATH/fra.txt

Models: bahdanau. Corpora: embedded (default; needs no file), tatoeba_600, tatoeba, tsv, parallel.
"""

from ml_collections import ConfigDict

MODELS: dict[str, dict] = {
    "bahdanau": {
        "name": "bahdanau",
        "kwargs": {
            "embedding": 256,
            "hidden": 256,
            "layers": 1,
            "bidirectional": True,
            "output": "deep",
            "dropout_sites": ("embeddings", "layers", "attention", "output"),
        },
    },
}

PAIRS: dict = {
    "source": "tsv",  # embedded, tsv (source<TAB>target a line), parallel (PATH.en and PATH.fr)
    "path": "",
    "languages": ("en", "fr"),  # the endings of parallel files
    "validation_path": "",  # a file of its own; empty: held out of `path`
    "test_path": "",
    "split": "by_source",  # by_source: held-out sentences drawn at random; in_order: the first pairs train
    "train": 0,  # how many; 0 with by_source: all the rest
    "validation": 1000,
    "test": 1000,
    "seed": 0,  # of the split, and of the embedded corpus
    "min_count": 2,
    "vocabulary": 10000,  # at most, each side, specials included
    "max_length": 64,  # tokens a sentence, <eos> included
    "on_long": "error",  # error, truncate, skip
    "on_bad_line": "error",  # error, skip
    "buckets": (8, 12, 16, 24, 32, 64),  # padded lengths
    "batch_tokens": 2048,  # padded target tokens a batch: rows × bucket length
    "on_device": True,  # keep the training set on the device; False: gather each call's rows on the host
}

CORPORA = {
    "embedded": PAIRS
    | {
        "source": "embedded",
        "validation": 200,
        "test": 200,
        "min_count": 1,
        "vocabulary": 256,
        "max_length": 16,
        "buckets": (8, 12, 16),
    },
    "tatoeba_600": PAIRS
    | {
        "split": "in_order",
        "train": 600,
        "validation": 200,
        "test": 0,
        "max_length": 10,
        "on_long": "truncate",
        "buckets": (10,),
        "batch_tokens": 640,
    },
    "tatoeba": PAIRS,
    "tsv": PAIRS,
    "parallel": PAIRS | {"source": "parallel"},
}

OPTIMIZER = {
    "schedule": "cosine",  # constant, inverse_sqrt, linear, cosine
    "learning_rate": 2e-3,
    "warmup_steps": 200,
    "decay_steps": 0,  # where the decay ends; 0: at train.steps
    "final_fraction": 0.02,
    "clip_norm": 1.0,
    "weight_decay": 0.0,
    "dropout": 0.2,
    "label_smoothing": 0.0,
}

TRAIN = {
    "steps": 5000,
    "steps_per_call": 16,  # batches of one bucket in a row, inside one compiled call
    "log_every": 100,
    "evaluate_every": 1000,
    "checkpoint_every": 1000,
    "keep_last": 2,
    "best_by": "validation.bleu",  # the best checkpoint by this is what is tested; or validation.loss, train.loss
    "init_from": "",  # another run's folder: start from its best parameters and vocabulary
}

EVALUATE = {
    "examples": 6,  # sentences whose attention is drawn
    "book_sentences": (),  # sentences of the file scored by the textbook's k = 2 score, against all their references
}

# What is tuned for a pair of model and corpus: overrides of the sections above.
RECIPES: dict[tuple[str, str], dict[str, dict]] = {
    ("bahdanau", "tatoeba_600"): {
        "kwargs": {
            "embedding": 32,
            "hidden": 32,
            "layers": 2,
            "bidirectional": False,
            "output": "state",
            "dropout_sites": ("layers", "attention"),
        },
        "optimizer": {"schedule": "constant", "learning_rate": 0.005, "warmup_steps": 0, "dropout": 0.1},
        "train": {
            "steps": 2500,  # 250 epochs of 10 batches
            "steps_per_call": 10,
            "log_every": 10,
            "evaluate_every": 500,
            "checkpoint_every": 500,
            "best_by": "train.loss",
        },
        "evaluate": {"book_sentences": ("go .", "i lost .", "i'm home .")},
    },
    ("bahdanau", "embedded"): {
        "kwargs": {"embedding": 128, "hidden": 128, "dropout_sites": ("embeddings", "output")},
        "optimizer": {"dropout": 0.4},
        "train": {"steps": 700, "log_every": 50, "evaluate_every": 175, "checkpoint_every": 175},
    },
    ("bahdanau", "tatoeba"): {"train": {"steps": 2100, "evaluate_every": 300, "checkpoint_every": 300}},
}


def get_config(variant="bahdanau,embedded"):
    model, _, corpus = variant.partition(",")
    for name, known in ((model, MODELS), (corpus, CORPORA)):
        if name not in known:
            raise ValueError(
                f"no variant {variant!r}: it is MODEL,CORPUS with {', '.join(MODELS)} and {', '.join(CORPORA)}"
            )
    recipe = RECIPES.get((model, corpus), {})
    return ConfigDict(
        {
            "experiment": "nmt",
            "seeds": (0,),
            "model": {"name": model, "kwargs": MODELS[model]["kwargs"] | recipe.get("kwargs", {})},
            "data": CORPORA[corpus],
            "optimizer": OPTIMIZER | recipe.get("optimizer", {}),
            "train": TRAIN | recipe.get("train", {}),
            "evaluate": EVALUATE | recipe.get("evaluate", {}),
            "precision": {"matmul": "default", "dtype": "float32", "param_dtype": "float32"},
        }
    )
