"""A run's own config, read from its folder; and as a config file, `stored.py:WORKDIR`, that --config.… overrides."""

from pathlib import Path

from ml_collections import ConfigDict

from attention_jax import hosts, stores
from attention_jax.errors import UserError
from attention_jax.launcher import experiments
from attention_jax.runs.experiment import require_readable
from attention_jax.runs.machine import set_up
from attention_jax.sweeps.folder import is_sweep, stored_config
from attention_jax.sweeps.settings import without_settings


def read(path: Path, flag: str = "") -> ConfigDict:
    """The config that a run or sweep was started with, once the process is set up for it.

    `flag` opens the error about a folder that a flag named. Raises UserError where there is no run, and for a run whose
    config this version cannot read. A sweep's config is of no cell yet: its cells are checked when they are planned.
    """
    config = config_of(path, flag)
    set_up(config.precision)
    require_own(path, config)
    return config


def config_of(path: Path, flag: str = "") -> ConfigDict:
    """The config that a run or sweep was started with, by whatever version; UserError where there is none."""
    config = stored_config(path)
    if config is None:
        raise UserError(f"{flag}{path}: no run here. Start one with --mode=train --config=configs/….")
    return config


def require_own(path: Path, config: ConfigDict) -> None:
    """Raise UserError for a run whose config this version cannot read."""
    if not is_sweep(path):
        require_readable(experiments.load(config.experiment), path, without_settings(config))


def get_config(workdir: str) -> ConfigDict:
    """The config that the run in a folder was started with; one of several hosts is checked once they have met."""
    path = stores.here(workdir)
    config = config_of(path)
    if "distributed" not in config or config.distributed == hosts.OFF:
        config = read(path)
    return config.unlock()
