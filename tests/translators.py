"""Every translator at a small size, for the tests of models and of decoding."""

import functools

import jax
import jax.numpy as jnp
from support import drawn

from attention_jax.models import TRANSLATORS
from configs.nmt import MODELS

SOURCE = jnp.array([[4, 5, 6, 7, 2], [8, 9, 2, 0, 0], [2, 0, 0, 0, 0]])
LENGTHS = jnp.array([5, 3, 1])
INPUTS = jnp.array([[1, 4, 5, 6], [1, 7, 8, 2], [1, 9, 0, 0]])
SIZES = {
    "embedding": 6,
    "hidden": 8,
    "layers": 2,
    "window": 1,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "width": 8,
    "heads": 4,
    "kv_heads": 4,
    "feed_forward": 16,
}
ONE_LAYER = {"layers": 1, "encoder_layers": 1, "decoder_layers": 1}
OPTIONS = {  # of what a layer is: these models have one of each
    "luong_general, no feeding, lstm": ("luong_general", {"input_feeding": False, "cell": "lstm"}),
    "bahdanau, lstm, cosine, sparsemax": (
        "bahdanau",
        {"cell": "lstm", "score": "cosine:temperature=0.2,learned=True", "normalize": "sparsemax"},
    ),
    "luong, kernel, sum": ("luong_general", {"score": "kernel:width=4", "normalize": "sum", "span": "local_p"}),
    "transformer, additive, sigmoid": ("transformer_book", {"score": "additive:hidden=3", "normalize": "sigmoid"}),
    "transformer, gaussian and bilinear": (
        "transformer_small",
        {
            "score": "gaussian:width=2,learned=True",
            "normalize": "learned_sink",
            "cross_score": "bilinear",
            "cross_normalize": "top_k",
        },
    ),
    "transformer, grouped": ("transformer_small", {"kv_heads": 2, "qk_norm": True, "gated": True}),
    "transformer, multi-query, selective": (
        "transformer_book",
        {"kv_heads": 1, "norm": "rms", "family": "selective", "decoder_positions": "alibi"},
    ),
    "transformer, batch norm, learned and fire": (
        "transformer_small",
        {"norm": "batch", "encoder_positions": "learned", "decoder_positions": "fire"},
    ),
    "transformer, rotary and alibi": (
        "transformer_small",
        {"encoder_positions": "rotary:fraction=0.5", "decoder_positions": "alibi", "kv_heads": 2, "heads": 2},
    ),
    "transformer, gru encoder, latent": (
        "transformer_book",
        {"encoder_mixer": "gru", "norm": "rms", "mixer": "latent:rank=5,rotary=2", "decoder_positions": "rotary"},
    ),
    "transformer, states": (
        "transformer_book",
        {"encoder_mixer": "linear", "mixer": "retention", "decoder_positions": "rotary", "kv_heads": 2},
    ),
    "transformer, delta decoder": ("transformer_small", {"mixer": "delta"}),
    "transformer, shaw and t5": ("transformer_book", {"encoder_positions": "shaw:clip=2", "decoder_positions": "t5"}),
    "transformer, forgetting and gated": (
        "transformer_small",
        {"family": "forgetting", "encoder_family": "gated", "cross_family": "gated:by=head", "kv_heads": 2},
    ),
    "transformer, no positions": (
        "transformer_tiny",
        {"encoder_positions": "none", "decoder_positions": "none", "shared": "none"},
    ),
}
SAME = ("transformer_base", "transformer_big")  # at these sizes transformer_tiny
NAMES = [name for name in (*MODELS, *OPTIONS) if name not in SAME]


def build(name, source=11, target=13, **sizes):
    base, options = OPTIONS.get(name, (name, {}))
    kwargs = MODELS[base]["kwargs"]
    sizes = SIZES | (ONE_LAYER if name in OPTIONS else {}) | sizes
    kwargs = kwargs | {key: size for key, size in sizes.items() if key in kwargs} | options
    target = source if kwargs.get("shared") == "all" else target
    kwargs |= {"backend": "reference"}
    return TRANSLATORS[MODELS[base]["name"]](source_vocabulary=source, target_vocabulary=target, **kwargs)


def fresh(module, key):
    return jax.jit(module.init)(key, SOURCE, LENGTHS, INPUTS)


@functools.cache
def trained(name, **sizes):
    """The model and variables that are not at their start."""
    module = build(name, **sizes)
    return module, drawn(module.init, SOURCE, LENGTHS, INPUTS)
