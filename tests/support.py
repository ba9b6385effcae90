"""What tests share."""

import functools
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("ATTENTION_JAX_DATA", ROOT.parent / "shared" / "data"))  # real corpora

POSITIVE = {"variance", "r1", "r2"}  # variances, and what makes a distance count


def drawn(init, *inputs):
    """The variables that a model's `init` makes of inputs, of random numbers: zeros and ones would hide mistakes.

    Only shapes are asked of `init`, for compiling it takes longer than most tests.
    """
    numbers = np.random.default_rng(0)

    def draw(path, leaf):
        found = numbers.normal(scale=0.45, size=leaf.shape)
        return jnp.asarray(0.2 + np.abs(found) if path[-1].key in POSITIVE else found, leaf.dtype)

    return jax.tree_util.tree_map_with_path(draw, jax.eval_shape(init, jax.random.key(0), *inputs))


@functools.cache
def compiled(module, method=None):
    """A method of a model as a program that all tests share: (variables, …) → what it says."""
    return jax.jit(functools.partial(module.apply, method=method))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gru_oracle(x, h, p):
    """One step of a GRU in float64."""
    r_i, z_i, n_i = np.split(x @ p["w_i"] + p["bias"], 3)
    r_h, z_h, n_h = np.split(h @ p["w_h"], 3)
    r, z = sigmoid(r_i + r_h), sigmoid(z_i + z_h)
    return (1 - z) * np.tanh(n_i + r * (n_h + p["candidate_bias"])) + z * h
