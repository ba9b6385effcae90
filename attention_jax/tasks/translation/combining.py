"""Which variables of a trained run translate, for each seed, as `config.evaluate.combine` says."""

import functools
from collections.abc import Callable

import flax.linen as nn
import jax
from ml_collections import ConfigDict

from attention_jax.errors import UserError
from attention_jax.tasks.translation.model import init
from attention_jax.tasks.translation.programs import Members
from attention_jax.training.saved import best_variables, last_variables
from attention_jax.training.state import mean

# Each seed's best variables; the mean of its last checkpoints; these checkpoints together; or the best of all seeds
# together. Functions of (how many checkpoints, the arguments of `best_variables`).
COMBINE: dict[str, Callable[..., list[Members]]] = {
    "best": lambda last, *saved: [(best,) for best in best_variables(*saved)],
    "average": lambda last, *saved: [(mean(of_seed),) for of_seed in last_variables(*saved, count=last)],
    "ensemble": lambda last, *saved: [tuple(of_seed) for of_seed in last_variables(*saved, count=last)],
    "seeds": lambda last, *saved: [tuple(best_variables(*saved))],
}
OF_SEVERAL = ("average", "ensemble")  # combinations of one seed's checkpoints


def require_combination(config: ConfigDict) -> None:
    """Raise UserError for an unknown combination, and for more checkpoints than the run will keep."""
    combine, last, kept = config.evaluate.combine, config.evaluate.last, config.train.keep_last
    if combine not in COMBINE:
        raise UserError(f"config.evaluate.combine={combine!r}: choose one of {', '.join(COMBINE)}.")
    most = min(kept, -(-config.train.steps // config.train.checkpoint_every))
    if not 1 <= last <= most:
        raise UserError(
            f"config.evaluate.last={last}: needs 1 to {most}, the number of checkpoints that there will be by "
            "config.train.keep_last and config.train.checkpoint_every."
        )
    if last > 1 and combine not in OF_SEVERAL:
        raise UserError(f"config.evaluate.last={last}: is for config.evaluate.combine={' or '.join(OF_SEVERAL)}.")


def require_mean(config: ConfigDict, model: nn.Module) -> None:
    """Raise UserError where checkpoints of a model with batch norms are averaged.

    A batch norm's moments belong to one checkpoint's parameters, not to their mean (Izmailov et al. 2018, §3.2).
    """
    if config.evaluate.combine != "average":
        return
    if "batch_stats" in jax.eval_shape(functools.partial(init, model), jax.random.key(0)):
        raise UserError(
            "config.evaluate.combine='average': the mean of checkpoints has no moments for a batch norm. Choose "
            "ensemble, or train with config.model.kwargs.norm=layer."
        )
