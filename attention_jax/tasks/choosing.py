"""Checks of a config's keys for drawing words, which translation and generation share."""

from ml_collections import ConfigDict

from attention_jax.errors import UserError


def require_drawing(asked: ConfigDict, section: str) -> None:
    """Raise UserError for a temperature, top_k or top_p that is out of bounds, or that would not be used."""
    for name in ("temperature", "top_k"):
        if asked[name] < 0:
            raise UserError(f"config.{section}.{name}={asked[name]}: needs 0 or more.")
    if not 0 < asked.top_p <= 1:
        raise UserError(f"config.{section}.top_p={asked.top_p}: needs more than 0 and at most 1.")
    for name, unused in (("top_k", 0), ("top_p", 1)):
        if asked[name] != unused and not asked.temperature:
            raise UserError(
                f"config.{section}.{name}={asked[name]}: is for drawing words. Set config.{section}.temperature more "
                "than 0."
            )
