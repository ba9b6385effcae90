"""Translation. One file for every model and corpus: the variant is MODEL,CORPUS.

    python launch.py --config=configs/nmt.py
    python launch.py --config=configs/nmt.py:bahdanau,tatoeba --config.data.path=PATH/fra.txt
    python launch.py --config=configs/nmt.py:transformer_small,multi30k --config.data.path=PATH/multi30k

Models and corpora are the keys of MODELS and CORPORA below; the embedded corpus needs no file.
"""

from ml_collections import ConfigDict

from attention_jax.sweeps.settings import POPULATION, SEARCH, SWEEP
from attention_jax.sweeps.space import chain, grid, log_uniform, product, seeds, uniform
from attention_jax.training.hyper import UNSET
from attention_jax.training.placement import MESH

RECURRENT = {
    "embedding": 256,
    "hidden": 256,
    "layers": 1,
    "cell": "gru",  # or lstm
    "bidirectional": True,
    "dropout_sites": ("embeddings", "layers", "attention", "output"),
    "attends": "before",  # the decoder's step; after it, or never
    "output": "deep",  # or state; attentional, which goes with "after"
    "input_feeding": False,  # of the attentional vector
    "span": "global",  # local_m, local_p
    "window": 5,  # words on either side, of the local ones
    "score": "additive",  # any of ops/scoring.py, with options: gaussian:width=2
    "normalize": "softmax",  # any of ops/normalizing.py: sigmoid, entmax15, top_k:k=4
    "backend": "auto",  # reference, chunked, cudnn, splash, …, or the first that can: cudnn/splash/auto
}
LUONG = RECURRENT | {"attends": "after", "output": "attentional", "score": "bilinear", "input_feeding": True}

TRANSFORMER = {
    "encoder_layers": 6,
    "decoder_layers": 6,
    "width": 512,
    "heads": 8,
    "kv_heads": 8,  # fewer: grouped-query attention; 1: multi-query
    "qk_norm": False,
    "feed_forward": 2048,
    "activation": "relu",  # gelu, silu
    "gated": False,
    "norm": "layer",  # rms, batch
    "norm_first": False,
    "encoder_positions": "sinusoidal",  # of self-attention: none, rotary, alibi, t5, …: ops/positions.py
    "decoder_positions": "sinusoidal",
    "max_length": 64,  # of learned positions
    "encoder_mixer": "attention",  # window, gru, convolution, linear: modules/mixers.py
    "mixer": "attention",  # of the decoder: latent, gru, convolution, linear, retention, gated_linear, delta
    "reach": 4,  # tokens on a side that a window or a convolution sees
    "encoder_pattern": "all",  # local:window=8,dilation=1,first=0, big_bird:block=16, strided:stride=8: ops/patterns.py
    "pattern": "all",  # of the decoder, the same
    "shared": "all",  # embeddings: none, target (with the logits), all three
    "dropout_sites": ("embeddings", "residual"),  # and attention, hidden
    "score": "scaled_dot",  # any of ops/scoring.py, with options: gaussian:width=2
    "normalize": "softmax",  # any of ops/normalizing.py: sigmoid, entmax15, top_k:k=4
    "cross_score": "",  # where attention to the source differs
    "cross_normalize": "",
    "family": "plain",  # of the decoder: talking, differential, gated, forgetting, contextual, selective
    "encoder_family": "plain",  # talking, differential, gated: modules/families.py
    "cross_family": "plain",  # the same
    "backend": "auto",  # reference, chunked, cudnn, splash, …, or the first that can: cudnn/splash/auto
    "stacked": False,  # layers scanned, their parameters one tree: a program's size is the same for any depth
    "remat": "none",  # what a layer's backward pass computes again: full; dots, dots_no_batch: all but products
}
SMALL = {
    "encoder_layers": 3,
    "decoder_layers": 3,
    "width": 256,
    "feed_forward": 512,
    "kv_heads": 8,
    "norm_first": True,
    "shared": "target",
}

MODELS: dict[str, dict] = {
    "seq2seq": {"name": "recurrent", "kwargs": RECURRENT | {"attends": "never"}},
    "bahdanau": {"name": "recurrent", "kwargs": RECURRENT},
    "luong_dot": {"name": "recurrent", "kwargs": LUONG | {"score": "dot", "bidirectional": False}},
    "luong_general": {"name": "recurrent", "kwargs": LUONG},
    "luong_concat": {"name": "recurrent", "kwargs": LUONG | {"score": "concat"}},
    "luong_location": {"name": "recurrent", "kwargs": LUONG | {"score": "location"}},
    "luong_local_m": {"name": "recurrent", "kwargs": LUONG | {"span": "local_m"}},
    "luong_local_p": {"name": "recurrent", "kwargs": LUONG | {"span": "local_p"}},
    "transformer_base": {"name": "transformer", "kwargs": TRANSFORMER, "data": {"joint_vocabulary": True}},
    "transformer_big": {
        "name": "transformer",
        "kwargs": TRANSFORMER | {"width": 1024, "heads": 16, "kv_heads": 16, "feed_forward": 4096},
        "data": {"joint_vocabulary": True},
    },
    "transformer_tiny": {
        "name": "transformer",
        "kwargs": TRANSFORMER
        | {"encoder_layers": 4, "decoder_layers": 4, "width": 128, "feed_forward": 256, "heads": 4, "kv_heads": 4},
        "data": {"joint_vocabulary": True},
    },
    "transformer_small": {"name": "transformer", "kwargs": TRANSFORMER | SMALL},
    "transformer_book": {
        "name": "transformer",
        "kwargs": TRANSFORMER
        | {"encoder_layers": 2, "decoder_layers": 2, "width": 32, "feed_forward": 64, "heads": 4, "kv_heads": 4}
        | {"shared": "none"},
    },
}

PAIRS: dict = {
    "source": "tsv",  # embedded, tsv (source<TAB>target a line), parallel (PATH.en and PATH.fr), tfds:NAME
    "path": "",
    "languages": ("en", "fr"),  # the endings of parallel files
    "train_path": "",  # a file in the folder `path`, as the two below are then; empty: `path` is the file
    "validation_path": "",  # a file of its own; empty: held out of the training file
    "test_path": "",
    "split": "by_source",  # by_source: held-out sentences drawn at random; in_order: the first pairs train
    "train": 0,  # how many; 0 with by_source: all the rest
    "validation": 1000,  # source sentences; -1: a tenth of them, at most 1,000
    "test": 1000,
    "seed": 0,  # of the split, and of the embedded corpus
    "tokenizer": "words",  # words, spacy, moses; or pieces of words: unigram, bpe
    "joint_vocabulary": False,  # one for both sides
    "min_count": 2,  # of words
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
    "tsv": PAIRS | {"validation": -1, "test": -1},  # a tenth each, at most 1,000: a file of any size
    "parallel": PAIRS | {"source": "parallel"},
    "tfds": PAIRS
    | {
        "source": "tfds:wmt14_translate/de-en",
        "path": "",  # the folder where TFDS keeps its data; empty: its default
        "languages": ("de", "en"),
        "train_path": "train",  # splits of the data set
        "validation_path": "validation",
        "test_path": "test",
        "tokenizer": "unigram",
        "vocabulary": 32000,
        "on_bad_line": "skip",
        "on_long": "truncate",
        "buckets": (16, 24, 32, 48, 64, 128),
        "max_length": 128,
        "on_device": False,
    },
    "multi30k": PAIRS
    | {
        "source": "parallel",
        "languages": ("de", "en"),
        "train_path": "train",
        "validation_path": "val",
        "test_path": "test_2016_flickr",
        "tokenizer": "bpe",
        "vocabulary": 5000,
        "buckets": (10, 12, 14, 16, 18, 22, 28, 64),
        "batch_tokens": 1024,
    },
}

OPTIMIZER = {
    "name": "adam",  # adamw, sgd, lion, adafactor, muon: training/optimizer.py
    "schedule": "cosine",  # constant, inverse_sqrt, linear, cosine
    "learning_rate": 2e-3,
    "warmup_steps": 200,
    "decay_steps": 0,  # where the decay ends; 0: at train.steps
    "final_fraction": 0.02,
    "clip_norm": 1.0,
    "weight_decay": 0.0,  # of matrices; decoupled from the gradient
    "dropout": 0.2,
    "label_smoothing": 0.0,
    **UNSET,  # b1, b2, momentum and all other numbers of optimizers; -1: the chosen one's own default
}

TRAIN = {
    "steps": 5000,
    "steps_per_call": 16,  # batches of one bucket in a row, inside one compiled call
    "accumulate": 1,  # micro-batches of each batch, for less memory
    "ema": 0.0,  # more: the decay of a running mean of the parameters, which is measured too, as ema.…
    "skip_nonfinite": 0,  # more: steps whose gradient is not finite are left out; so many in a row end training
    "log_every": 100,
    "evaluate_every": 1000,
    "checkpoint_every": 1000,
    "checkpoint_minutes": 0,  # more: also where the last is so many minutes old
    "keep_last": 2,
    "best_by": "validation.bleu",  # the best checkpoint by this is what is tested; or validation.loss, train.loss
    "init_from": "",  # another run's folder: start from its best parameters and vocabulary
}

EVALUATE = {
    "bleu_tokens": "13a",  # what `bleu` counts: sacreBLEU's 13a, or words, spacy, moses; `bleu_13a` is there always
    "combine": "best",  # what translates: best, or of the last checkpoints their average or ensemble; or all seeds
    "last": 1,  # how many checkpoints, of those that train.keep_last keeps
    "beams": 1,  # 1: greedy
    "test_beams": 0,  # more: the test is searched with so many as well, which `test.beams` tells
    "length_penalty": 1.0,  # of beams: 0 prefers short translations
    "n_best": 1,  # more, up to beams: --mode=translate writes so many lines a sentence, each a score, a tab, the text
    "temperature": 0.0,  # more than 0: words are drawn, each sentence's with a key of its own
    "top_k": 0,  # of the k likeliest words; 0: of all
    "top_p": 1.0,  # of the likeliest words with this mass
    "seed": 0,  # of what is drawn
    "alignment_layer": -1,  # the decoder layer whose attention to the source is taken for an alignment
    "examples": 6,  # sentences whose attention is drawn
    "book_sentences": (),  # sentences of the file scored by the textbook's k = 2 score, against all their references
}

# The budget and the measure that every model has on a corpus: overrides of the sections above.
BUDGETS: dict[str, dict[str, dict]] = {
    "embedded": {"train": {"steps": 700, "log_every": 50, "evaluate_every": 175, "checkpoint_every": 175}},
    "tatoeba_600": {
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
    "tatoeba": {"train": {"steps": 2100, "evaluate_every": 300, "checkpoint_every": 300}},
    "multi30k": {
        "optimizer": {"label_smoothing": 0.1, "dropout": 0.3},
        "train": {"steps": 6000, "steps_per_call": 1, "evaluate_every": 1500, "checkpoint_every": 500, "keep_last": 5},
        "evaluate": {"bleu_tokens": "spacy", "test_beams": 5},
    },
}

# What is tuned for a pair of model and corpus.
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
    },
    **{
        (model, "embedded"): {
            "kwargs": {"embedding": 128, "hidden": 128, "dropout_sites": ("embeddings", "output")},
            "optimizer": {"dropout": 0.4},
        }
        for model, whole in MODELS.items()
        if whole["name"] != "transformer"
    },
    **{
        (model, "tfds"): {"kwargs": {"max_length": 128}}
        for model, whole in MODELS.items()
        if "max_length" in whole["kwargs"]
    },
    ("luong_location", "tfds"): {"kwargs": {"score": "location:longest=128"}},
    ("transformer_tiny", "multi30k"): {
        "kwargs": {"dropout_sites": ("embeddings", "residual", "attention", "hidden")},
        "data": {"vocabulary": 10000, "batch_tokens": 2048},
        "optimizer": {
            "schedule": "inverse_sqrt",
            "learning_rate": 3e-3,
            "warmup_steps": 2000,
            "b2": 0.98,
            "dropout": 0.3,
        },
        "train": {"steps": 12000, "keep_last": 10},
    },
    ("transformer_small", "multi30k"): {
        "kwargs": {"encoder_positions": "rotary", "decoder_positions": "rotary"},
        "optimizer": {"learning_rate": 1.5e-3, "warmup_steps": 400, "b2": 0.98, "dropout": 0.15},
    },
}


def get_config(variant="bahdanau,embedded"):
    model, _, corpus = variant.partition(",")
    for name, known in ((model, MODELS), (corpus, CORPORA)):
        if name not in known:
            raise ValueError(
                f"no variant {variant!r}: it is MODEL,CORPUS. Models are {', '.join(MODELS)}; corpora are "
                f"{', '.join(CORPORA)}."
            )
    budget, recipe = BUDGETS.get(corpus, {}), RECIPES.get((model, corpus), {})
    sections = {"optimizer": OPTIMIZER, "train": TRAIN, "evaluate": EVALUATE}
    return ConfigDict(
        {
            "experiment": "nmt",
            "seeds": (0,),
            "model": {"name": MODELS[model]["name"], "kwargs": MODELS[model]["kwargs"] | recipe.get("kwargs", {})},
            "data": CORPORA[corpus] | MODELS[model].get("data", {}) | recipe.get("data", {}),
            **{name: base | budget.get(name, {}) | recipe.get(name, {}) for name, base in sections.items()},
            "precision": {"matmul": "default", "dtype": "float32", "param_dtype": "float32"},
            "mesh": MESH,
            "distributed": "off",  # hosts: auto (SLURM, TPU, GKE, Open MPI), or the first one's HOST:PORT
            "population": POPULATION,
            "sweep": SWEEP,
            "search": SEARCH,
        }
    )


def rates(variant):
    del variant
    return product(
        grid("optimizer.learning_rate", (1e-3, 2e-3, 5e-3, 1e-2)), grid("optimizer.dropout", (0.0, 0.1, 0.3)), seeds(5)
    )


def search():
    """What --mode=search draws from."""
    return {"optimizer.learning_rate": log_uniform(3e-4, 3e-2), "optimizer.dropout": uniform(0, 0.5)}


def seeds_by_rate(variant):
    """How much of a learning rate's luck is its seed's: 1,024 cells, which a GPU trains side by side."""
    del variant
    return product(grid("optimizer.learning_rate", [round(1e-3 * 2 ** (n / 3), 6) for n in range(16)]), seeds(64))


def models(variant):
    """Every model that trains in minutes, on the variant's corpus."""
    return product(variants(variant, [name for name in MODELS if name not in LARGE]), seeds(3))


def luong(variant):
    """Luong's scores and windows, on the variant's corpus."""
    return product(variants(variant, [name for name in MODELS if name.startswith("luong_")]), seeds(1))


def multi30k(variant):
    """The models of the table in docs/translation.md, with as many seeds as it has of each."""
    del variant
    rows = [
        product([{"variant": f"{model},multi30k", **TABLE_OVERRIDES.get(model, {})}], seeds(count))
        for model, count in TABLE.items()
    ]
    return chain(*rows)


def variants(variant, names):
    corpus = variant.partition(",")[2]
    return grid("variant", [f"{name},{corpus}" for name in names])


TABLE = {"seq2seq": 1, "bahdanau": 3, "luong_concat": 3, "transformer_small": 3, "transformer_tiny": 1}
TABLE_OVERRIDES: dict[str, dict] = {
    "transformer_tiny": {
        "data.languages": ("en", "de"),
        "train.steps": 7000,  # an hour or so of one core; its own recipe is for a GPU's many epochs
        "train.evaluate_every": 1000,
        "train.checkpoint_every": 250,
        "model.kwargs.norm_first": True,
        "model.kwargs.dropout_sites": ("embeddings", "residual"),
        "optimizer.schedule": "cosine",
        "optimizer.learning_rate": 2e-3,
        "optimizer.warmup_steps": 300,
        "optimizer.dropout": 0.1,
        "data.batch_tokens": 1024,
        "data.vocabulary": 6000,
        "evaluate.combine": "average",
        "evaluate.last": 5,
        "evaluate.bleu_tokens": "moses",
    }
}
LARGE = ("transformer_base", "transformer_big")
SWEEPS = {"rates": rates, "seeds_by_rate": seeds_by_rate, "models": models, "luong": luong, "multi30k": multi30k}


def sweep(name="rates", variant="bahdanau,embedded"):
    if name not in SWEEPS:
        raise ValueError(f"no such sweep: choose one of {', '.join(SWEEPS)}.")
    return SWEEPS[name](variant)
