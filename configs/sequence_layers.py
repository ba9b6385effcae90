"""What does attention cost beside an RNN or a CNN? FLOPs, time, memory, depth and paths, measured beside the formulas.

python launch.py --config=configs/sequence_layers.py
python launch.py --config=configs/sequence_layers.py --config.kernel=7
"""

from ml_collections import ConfigDict

from attention_jax.sweeps.settings import POPULATION, SWEEP


def get_config():
    return ConfigDict(
        {
            "experiment": "sequence_layers",
            "seeds": (0,),
            "layers": ("self_attention", "window", "gru", "cnn", "cnn_dilated"),
            "lengths": (64, 128, 256, 512),
            "widths": (32, 64, 128, 256),
            "kernel": 5,  # tokens
            "reach": 8,  # of a window, on either side
            "repeats": 20,  # timings, of which the least counts
            "precision": {"matmul": "highest"},
            "population": POPULATION,
            "sweep": SWEEP,
        }
    )
