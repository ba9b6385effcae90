"""How the next word is drawn, as a section of a config says: what is refused, whatever it is drawn for."""

from ml_collections import ConfigDict

from attention_jax.errors import UserError


def require_drawing(asked: ConfigDict, section: str) -> None:
    """Raise UserError for a temperature, top_k or top_p that nothing can be drawn with, or that would not be used."""
    if asked.temperature < 0 or asked.top_k < 0 or not 0 < asked.top_p <= 1:
        raise UserError(
            f"config.{section}: temperature={asked.temperature} and top_k={asked.top_k} need 0 or more, and "
            f"top_p={asked.top_p} more than 0 and at most 1."
        )
    if not asked.temperature and (asked.top_k or asked.top_p < 1):
        raise UserError(
            f"config.{section}: top_k={asked.top_k} and top_p={asked.top_p} are of words that are drawn: "
            "set temperature to more than 0."
        )
