"""Is attention explanation? What finished translation runs attend to, beside gradients, erasure and true alignments.

    python launch.py --config=configs/explanation.py --config.runs=runs/bahdanau,runs/transformer
    python launch.py --config=configs/explanation.py:smoke --config.runs=runs/bahdanau

`config.runs` are folders of runs whose corpus knows which words translate which, all of whose seeds are measured:

    python launch.py --config=configs/nmt.py:bahdanau,embedded --config.seeds="(0,1,2,3,4)" --workdir=runs/bahdanau
"""

from ml_collections import ConfigDict

from attention_jax.sweeps.settings import POPULATION, SWEEP

SIZES: dict[str, dict] = {
    "core": {"sentences": 100, "draws": 10, "epsilons": (0.01, 0.03, 0.1, 0.3), "steps": 500},
    "smoke": {"sentences": 16, "draws": 2, "epsilons": (0.1,), "steps": 60},
}


def get_config(variant="core"):
    if variant not in SIZES:
        raise ValueError(f"no variant {variant!r}: choose one of {', '.join(SIZES)}.")
    return ConfigDict(
        {
            "experiment": "explanation",
            "seeds": (0,),  # of what is drawn; a run's own seeds are all measured
            "runs": "",  # folders, with commas between them
            "split": "test",
            **SIZES[variant],  # sentences; draws of random weights; the adversary's ε, and the steps of its search
            "learning_rate": 0.1,  # of the adversary
            "precision": {"matmul": "default"},  # of all that is computed here, whatever a run was trained with
            "population": POPULATION,
            "sweep": SWEEP,
        }
    )
