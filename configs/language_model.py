"""Language models. One file for every model and corpus: the variant is MODEL,CORPUS.

    python launch.py --config=configs/language_model.py
    python launch.py --config=configs/language_model.py:cpu,characters --config.data.path=PATH/input.txt
    python launch.py --config=configs/language_model.py:baby,pieces --config.data.path=FOLDER
    printf 'ROMEO:\\n' | python launch.py --workdir=runs/language_model-cpu-characters --mode=generate

Models and corpora are the keys of MODELS and CORPORA below; without a path the text is generated sentences.
"""

from ml_collections import ConfigDict

from attention_jax.sweeps.settings import POPULATION, SWEEP
from attention_jax.sweeps.space import grid, product, seeds
from attention_jax.training.hyper import UNSET
from attention_jax.training.placement import MESH, REST

TRANSFORMER = {
    "layers": 4,
    "width": 128,
    "heads": 4,
    "kv_heads": 4,  # fewer: grouped-query attention; 1: multi-query
    "qk_norm": False,
    "feed_forward": 512,
    "activation": "gelu",  # relu, silu
    "gated": False,
    "norm": "layer",  # rms, batch
    "norm_first": True,
    "positions": "rotary",  # none, sinusoidal, learned, alibi, t5, shaw, fire, …: ops/positions.py
    "max_length": 1024,  # of learned positions
    "mixer": "attention",  # window, latent, gru, convolution, linear, retention, gated_linear, delta: modules/mixers.py
    "reach": 4,  # tokens on a side that a window or a convolution sees
    "pattern": "all",  # local:window=8,dilation=1,first=0, big_bird:block=16, strided:stride=8,
    # streaming:sinks=4,window=64, with a cache of that size: ops/patterns.py
    "is_tied": True,  # embeddings and logits
    "dropout_sites": ("embeddings", "residual"),  # and attention, hidden
    "score": "scaled_dot",  # any of ops/scoring.py, with options: gaussian:width=2
    "normalize": "softmax",  # any of ops/normalizing.py: sigmoid, entmax15, top_k:k=4
    "family": "plain",  # talking, differential, gated, forgetting, contextual, selective: modules/families.py
    "backend": "auto",  # reference, chunked, cudnn, splash, …, or the first that can: cudnn/splash/auto
    "stacked": False,  # layers scanned, their parameters one tree: a program's size is the same for any depth
    "remat": "none",  # what a layer's backward pass computes again: full; dots, dots_no_batch: all but products
}

# How a model is drawn and learnt, beside what it computes.
PARAMETRIZATION = {
    "parametrization": "standard",  # mup: one learning rate for every width
    "base_width": 128,  # at which mup is standard, with so many heads at every width:
    "base_heads": 4,
}

MODELS: dict[str, dict] = {
    "cpu": TRANSFORMER,
    "cpu_long": TRANSFORMER | {"layers": 6, "width": 192, "heads": 6, "kv_heads": 6, "feed_forward": 768},
    "baby": TRANSFORMER | {"layers": 6, "width": 384, "heads": 6, "kv_heads": 6, "feed_forward": 1536},
    "gpt2_small": TRANSFORMER  # Radford et al. 2019, with its own positions
    | {"layers": 12, "width": 768, "heads": 12, "kv_heads": 12, "feed_forward": 3072, "positions": "learned"},
    "gpt_1b3": TRANSFORMER  # the size of Brown et al. 2020, table 2.1, for a slice of TPUs or a machine of GPUs
    | {"layers": 24, "width": 2048, "heads": 16, "kv_heads": 16, "feed_forward": 8192}
    | {"stacked": True, "remat": "dots_no_batch"},
}

TEXT: dict = {
    "source": "text",  # text: a file, or a folder of *.txt; jsonl: a document a line; tfds:NAME
    "path": "",  # of the file or folder; of TFDS, where it keeps its data; empty: generated sentences
    "train_path": "",  # a file or folder in `path`, or a split of TFDS; empty: `path` itself
    "validation_path": "",  # the same; empty: `held_out` of what is there to train on
    "test_path": "",
    "held_out": 0.1,  # the last share of one text, or a share of whole documents, drawn
    "held_out_test": 0.0,
    "key": "text",  # of a JSON line or of an example of TFDS: where its text is
    "tokenizer": "characters",  # bytes; pieces: unigram, bpe
    "vocabulary": 256,  # of pieces, at most
    "seed": 0,  # of documents that are drawn, and of generated sentences
    "packing": "windows",  # of the whole text, drawn anywhere; documents: as many as fit in a row, told apart
    "length": 256,  # tokens of a row
    "batch": 64,  # rows
}

CORPORA: dict[str, dict] = {
    "characters": TEXT,
    "bytes": TEXT | {"tokenizer": "bytes", "vocabulary": 260},
    "pieces": TEXT | {"tokenizer": "bpe", "vocabulary": 8192},
    "jsonl": TEXT | {"source": "jsonl", "tokenizer": "bpe", "vocabulary": 8192, "packing": "documents"},
    "tfds": TEXT
    | {"source": "tfds:lm1b", "train_path": "train", "validation_path": "test", "tokenizer": "bpe", "vocabulary": 16384}
    | {"packing": "documents"},
}

OPTIMIZER = {
    "name": "adam",  # adamw, sgd, lion, adafactor, muon: training/optimizer.py
    "schedule": "cosine",  # constant, inverse_sqrt, linear
    "learning_rate": 1e-3,
    "warmup_steps": 100,
    "decay_steps": 0,  # where the decay ends; 0: at train.steps
    "final_fraction": 0.1,
    "clip_norm": 1.0,
    "weight_decay": 0.1,  # of matrices; decoupled from the gradient
    "dropout": 0.0,
    "label_smoothing": 0.0,
    **UNSET,  # b1, b2, momentum and all other numbers of optimizers; -1: the chosen one's own default
    "b2": 0.99,
}

TRAIN = {
    "steps": 5000,
    "steps_per_call": 10,  # batches inside one compiled call
    "accumulate": 1,  # micro-batches of each batch, for less memory
    "ema": 0.0,  # more: the decay of a running mean of the parameters, which is measured too, as ema.…
    "skip_nonfinite": 0,  # more: steps whose gradient is not finite are left out; so many in a row end training
    "log_every": 50,
    "evaluate_every": 250,
    "checkpoint_every": 250,
    "checkpoint_minutes": 0,  # more: also where the last is so many minutes old
    "keep_last": 1,
    "best_by": "validation.loss",  # the best checkpoint by this is what is measured, and what writes
}

EVALUATE = {
    "length": 0,  # tokens of a row; 0: data.length
    "stride": 0,  # of windows: each begins so many tokens after the one before, and counts those; 0: a whole window
    "batch": 64,  # rows at once
    "tokens": 262144,  # held-out tokens that are measured while training goes on, the first; 0: all, as at the end
    "positions": "",  # as trained; or what has the same parameters: rotary:scaling=ntk,factor=4
}

PRECISION = {"matmul": "default", "dtype": "float32", "param_dtype": "float32"}

GENERATE = {
    "tokens": 500,  # after a prompt, at most: documents may end before
    "temperature": 0.8,  # 0: the likeliest token each time
    "top_k": 0,  # of the k likeliest tokens; 0: of all
    "top_p": 1.0,  # of the likeliest tokens with this mass
    "samples": 1,  # texts a prompt
    "seed": 0,
    "prompts": "whole",  # all that is read is one prompt; lines: each line is one
    "context": 0,  # tokens that are read at most, then the later half is read again; 0: all, however many
}

STATISTICS = {  # of every head's weights: entropy, distance, mass on the first key, and the largest
    "rows": 4,  # of held-out text, the first; 0: none
    "length": 0,  # tokens of a row, any number: no map of weights is made; 0: data.length
    "top": 4,  # of how many keys a query's largest weights are kept
}

# What a model has on every corpus: overrides of the sections above, of "mesh" and of "precision".
BUDGETS: dict[str, dict[str, dict]] = {
    "gpt_1b3": {
        "data": {"length": 2048, "batch": 512},  # a million tokens
        "optimizer": {"learning_rate": 2e-4, "warmup_steps": 2000, "b2": 0.95},
        "mesh": {"data": 1, "fsdp": REST},  # on more than 16 devices fsdp 16, and data -1: docs/tpu.md
        "precision": {"dtype": "bfloat16"},
    },
}

MUON = {"name": "muon", "final_fraction": 0.0, "weight_decay": 0.0}

# What is tuned for a pair of model and corpus: overrides of the sections above.
RECIPES: dict[tuple[str, str], dict[str, dict]] = {
    ("cpu", "characters"): {  # three minutes of two cores on a megabyte of Shakespeare
        "data": {"length": 128, "batch": 16},
        "optimizer": {**MUON, "learning_rate": 12e-3, "warmup_steps": 40},
        "train": {"steps": 800, "evaluate_every": 200, "checkpoint_every": 200},
        "evaluate": {"tokens": 32768},
    },
    ("cpu_long", "characters"): {  # half an hour of them
        "data": {"length": 128, "batch": 32},
        "optimizer": {**MUON, "learning_rate": 8e-3, "dropout": 0.1},
        "train": {"steps": 1500},
        "evaluate": {"tokens": 32768},
    },
    ("baby", "characters"): {"optimizer": {"dropout": 0.2}},
}


def get_config(variant="cpu,characters"):
    model, _, corpus = variant.partition(",")
    for name, known in ((model, MODELS), (corpus, CORPORA)):
        if name not in known:
            raise ValueError(
                f"no variant {variant!r}: it is MODEL,CORPUS. Models are {', '.join(MODELS)}; corpora are "
                f"{', '.join(CORPORA)}."
            )
    budget, recipe = BUDGETS.get(model, {}), RECIPES.get((model, corpus), {})
    sections: dict[str, dict] = {
        "data": CORPORA[corpus],
        "optimizer": OPTIMIZER,
        "train": TRAIN,
        "evaluate": EVALUATE,
        "precision": PRECISION,
        "mesh": MESH,
    }
    chosen = {name: base | budget.get(name, {}) | recipe.get(name, {}) for name, base in sections.items()}
    return ConfigDict(
        {
            "experiment": "language_model",
            "seeds": (0,),
            "model": MODELS[model] | PARAMETRIZATION | recipe.get("model", {}),
            **chosen,
            "generate": GENERATE | {"context": chosen["data"]["length"]},  # beyond what it saw a model writes worse
            "statistics": STATISTICS,
            "distributed": "off",  # hosts: auto (SLURM, TPU, GKE, Open MPI), or the first one's HOST:PORT
            "population": POPULATION,
            "sweep": SWEEP,
        }
    )


def positions():
    return product(grid("model.positions", ("none", "learned", "rotary", "alibi", "t5")), seeds(3))


def attention():
    """Ways to score keys and to make weights of scores."""
    ways = (
        ("scaled_dot", "softmax"),
        ("scaled_dot", "sigmoid"),
        ("scaled_dot", "entmax15"),
        ("scaled_dot", "learned_sink"),
        ("cosine:learned=True", "softmax"),
        ("gaussian:learned=True", "softmax"),
    )
    score, normalize = zip(*ways, strict=True)
    return product([{"model.score": s, "model.normalize": n} for s, n in zip(score, normalize, strict=True)], seeds(3))


def families():
    """Families of attention that keep a map."""
    names = ("plain", "talking", "differential", "gated", "forgetting", "contextual", "selective")
    return product(grid("model.family", names), seeds(3))


def patterns():
    """Which keys a token attends to: all, or few of them."""
    names = ("all", "local:window=15", "big_bird:block=4,window=1", "strided:stride=12", "streaming:sinks=4,window=12")
    return product(grid("model.pattern", names), seeds(3))


SWEEPS = {"positions": positions, "attention": attention, "families": families, "patterns": patterns}


def sweep(name="positions"):
    if name not in SWEEPS:
        raise ValueError(f"no such sweep: choose one of {', '.join(SWEEPS)}.")
    return SWEEPS[name]()
