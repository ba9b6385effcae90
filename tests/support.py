"""What tests share."""

import os
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("ATTENTION_JAX_DATA", ROOT.parent / "shared" / "data"))  # real corpora


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gru_oracle(x, h, p):
    """One step of a GRU in float64."""
    r_i, z_i, n_i = np.split(x @ p["w_i"] + p["bias"], 3)
    r_h, z_h, n_h = np.split(h @ p["w_h"], 3)
    r, z = sigmoid(r_i + r_h), sigmoid(z_i + z_h)
    return (1 - z) * np.tanh(n_i + r * (n_h + p["candidate_bias"])) + z * h
