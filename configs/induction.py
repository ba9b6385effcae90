"""Induction heads: when do heads learn to go on as the text did before, and does the context help from then on?

    python launch.py --config=configs/induction.py
    python launch.py --config=configs/induction.py:one_layer,repeated
    python launch.py --config=configs/induction.py:two_layers,text --config.data.path=PATH/input.txt
    python launch.py --config=configs/induction.py:smoke

The variant is DEPTH,DATA, keys of DEPTHS and DATA below. Models attend and do little else; without a path a text is
generated sentences.
"""

import runpy
from pathlib import Path

from ml_collections import ConfigDict

from attention_jax.sweeps.settings import POPULATION, SWEEP
from attention_jax.training.placement import MESH

LM = runpy.run_path(str(Path(__file__).with_name("language_model.py")))

DEPTHS = {"one_layer": 1, "two_layers": 2}
MODEL = LM["TRANSFORMER"] | {"width": 64, "feed_forward": 1, "is_tied": False, "dropout_sites": ("residual",)}

REPEATED: dict = {
    "source": "repeated",
    "symbols": 32,
    "length": 64,  # tokens of a row
    "shortest": 8,  # of the periods that are drawn; the longest is half a row
    "batch": 32,  # rows
    "rows": 64,  # that are measured
    "seed": 0,  # of these
}
DATA: dict[str, dict] = {
    "repeated": REPEATED,
    "text": LM["TEXT"] | {"length": 128, "batch": 16, "rows": 64},
}
EVALUATE: dict[str, dict] = {"repeated": {"positions": ""}, "text": LM["EVALUATE"] | {"tokens": 32768}}

OPTIMIZER = LM["OPTIMIZER"] | {"learning_rate": 3e-3, "schedule": "constant", "weight_decay": 0.0}
TRAIN = LM["TRAIN"] | {"steps": 2000, "log_every": 50, "evaluate_every": 50, "checkpoint_every": 500}
SMOKE: dict[str, dict] = {
    "data": {"length": 32, "shortest": 4, "symbols": 16, "rows": 16},
    "train": {"steps": 400, "evaluate_every": 20, "log_every": 20, "checkpoint_every": 400},
}


def get_config(variant="two_layers,repeated"):
    smaller = SMOKE if variant == "smoke" else {}
    depth, _, data = ("two_layers,repeated" if smaller else variant).partition(",")
    for name, known in ((depth, DEPTHS), (data, DATA)):
        if name not in known:
            raise ValueError(
                f"no variant {variant!r}: it is smoke, or DEPTH,DATA. Depths are {', '.join(DEPTHS)}; data are "
                f"{', '.join(DATA)}."
            )
    return ConfigDict(
        {
            "experiment": "induction",
            "seeds": (0, 1) if smaller else (0, 1, 2, 3, 4),
            "model": MODEL | LM["PARAMETRIZATION"] | {"layers": DEPTHS[depth]},
            "data": DATA[data] | smaller.get("data", {}),
            "optimizer": OPTIMIZER,
            "train": TRAIN | smaller.get("train", {}),
            "evaluate": EVALUATE[data],
            "precision": LM["PRECISION"],
            "mesh": MESH,
            "distributed": "off",  # hosts: auto (SLURM, TPU, GKE, Open MPI), or the first one's HOST:PORT
            "population": POPULATION,
            "sweep": SWEEP,
        }
    )
