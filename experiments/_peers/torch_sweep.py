"""A sweep in PyTorch under Hydra, to be measured beside the project's own: the runs of a grid, in joblib's processes.

    python torch_sweep.py --multirun batches=FILE.npz learning_rate=1e-3,2e-3 rate=0,0.1 seed=0,1,2

FILE.npz is that of torch_train.py, whose Bahdanau model, of two layers of 32, every run trains for `steps` steps on one
thread, two runs at a time.
"""

import argparse

import hydra
import torch
from hydra.core.config_store import ConfigStore
from torch_train import Training

SIZES = {"model": "bahdanau", "width": 32, "layers": 2, "heads": 4, "feed_forward": 64, "batch": 64, "compile": 0}
WHERE = {"device": "cpu", "dtype": "float32", "sites": ""}
DEFAULTS = {"batches": "", "steps": 500, "learning_rate": 0.005, "rate": 0.1, "seed": 0}
JOBLIB = {"defaults": ["_self_", {"override hydra/launcher": "joblib"}], "hydra": {"launcher": {"n_jobs": 2}}}
ConfigStore.instance().store(name="sweep", node={**JOBLIB, **DEFAULTS})


@hydra.main(version_base=None, config_name="sweep")
def main(config):
    """Train one cell."""
    torch.set_num_threads(1)
    torch.manual_seed(config.seed)
    training = Training(argparse.Namespace(**SIZES, **WHERE, **config))
    for _ in range(config.steps):
        rows = training.next_rows()
        training.step(training.source[rows], training.target[rows])


if __name__ == "__main__":
    main()
