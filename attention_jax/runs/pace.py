"""How fast a run trained, from what it logged."""

import numpy as np
from ml_collections import ConfigDict

from attention_jax.runs.folder import Run


def pace(run: Run, config: ConfigDict) -> dict[str, float]:
    """What a seed's training takes: its seconds, those of a step (the median over what was logged), its speed, and MFU.

    They are of training steps alone: no compilation, no evaluation, nothing that a kill lost. Empty where no step was
    timed.
    """
    seconds, steps, shares, tokens = [], [], [], 0.0
    for seed in config.seeds:
        before = 0
        for line in (line for line in run.metrics() if line["seed"] == seed):
            tokens += line["train.tokens"]
            if "train.step_seconds" in line:
                seconds.append(line["train.step_seconds"])
                steps.append(line["step"] - before)
                shares.append(line.get("train.mfu", np.nan))
            before = line["step"]
    if not seconds:
        return {}
    whole = config.train.steps * float(np.average(seconds, weights=steps))
    speed = tokens / len(config.seeds) / whole
    found = {"seconds": whole, "step_seconds": float(np.median(seconds)), "tokens_per_second": speed}
    return found if np.isnan(shares).any() else found | {"mfu": float(np.average(shares, weights=steps))}
