"""What does attention cost beside an RNN or a CNN, and what is it worth?

    python launch.py --config=configs/sequence_layers.py
    python launch.py --config=configs/sequence_layers.py:tasks
    python launch.py --config=configs/sequence_layers.py:translation
    python launch.py --config=configs/sequence_layers.py:norms

The first measures FLOPs, time, memory, depth and paths beside the formulas. The others are sweeps: layers in a language
model's place of attention, and in an encoder's; and a layer norm against a batch norm, in small and large batches of
sentences that are alike in length or not.
"""

import runpy
from pathlib import Path

from ml_collections import ConfigDict

from attention_jax.sweeps.settings import POPULATION, SWEEP
from attention_jax.sweeps.space import chain, grid, product, seeds

POSITIONS = Path(__file__).with_name("positional_encoding.py")
MIXERS = ("attention", "window", "gru", "convolution")
VARIANTS = ("costs", "tasks", "translation", "norms")


def get_config(variant="costs"):
    if variant not in VARIANTS:
        raise ValueError(f"no variant {variant!r}: choose one of {', '.join(VARIANTS)}")
    if variant == "costs":
        return _costs()
    if variant == "tasks":
        return _positional_encoding("core")
    config = _positional_encoding("translation")
    if variant == "norms":
        config.sweep.within = ("data.buckets", "data.batch_tokens")
    return config


def _positional_encoding(variant):
    return runpy.run_path(str(POSITIONS))["get_config"](variant)


def _costs():
    return ConfigDict(
        {
            "experiment": "sequence_layers",
            "seeds": (0,),
            "layers": ("self_attention", "window", "gru", "cnn", "cnn_dilated"),
            "lengths": (64, 128, 256, 512),
            "widths": (32, 64, 128, 256),
            "kernel": 5,  # tokens
            "reach": 8,  # of a window, on either side
            "repeats": 100,  # timings, of which the least counts
            "precision": {"matmul": "highest"},
            "population": POPULATION,
            "sweep": SWEEP,
        }
    )


def sweep(variant="costs"):
    if variant == "tasks":
        attending = product(grid("model.mixer", MIXERS[:2]), grid("model.positions", ("rotary",)))
        mixing = product(grid("model.mixer", MIXERS[2:]), grid("model.positions", ("none",)))  # theirs is in the order
        return product(chain(attending, mixing), grid("data.task", ("last_occurrence", "reverse")), seeds(3))
    if variant == "translation":
        return product(grid("model.kwargs.encoder_mixer", MIXERS), seeds(3))
    if variant == "norms":
        batches = product(grid("data.buckets", ((8, 12, 16), (16,))), grid("data.batch_tokens", (256, 2048)))
        return product(grid("model.kwargs.norm", ("layer", "batch")), batches, seeds(3))
    raise ValueError("the variant costs is a run: leave --mode out. Sweeps are tasks, translation and norms.")
