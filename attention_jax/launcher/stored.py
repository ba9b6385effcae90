"""A run's own config as a config file, `stored.py:WORKDIR`: what --config.… overrides where no --config is given."""

from pathlib import Path

from ml_collections import ConfigDict

from attention_jax.sweeps.folder import stored_config


def get_config(workdir: str) -> ConfigDict:
    """The config that the run in a folder was started with."""
    config = stored_config(Path(workdir))
    if config is None:
        raise ValueError(f"{workdir}: no run here. Name an experiment with --config=configs/…")
    return config.unlock()
