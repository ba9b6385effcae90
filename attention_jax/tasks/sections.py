"""Errors of a constructor, as errors of the config's section that its arguments come from."""

import contextlib
import re
from collections.abc import Iterator

from attention_jax.errors import UserError


@contextlib.contextmanager
def of_section(section: str) -> Iterator[None]:
    """Raise a constructor's error as a UserError that names the config's key: "config.model.kwargs.heads=5: …".

    A ValueError opens with KEY=VALUE, or is about no single key. A TypeError is about a key that is unknown or missing.
    """
    try:
        yield
    except UserError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(_named(section, error)) from None


def _named(section: str, error: Exception) -> str:
    text = str(error)
    if unknown := re.search(r"unexpected keyword argument '(\w+)'", text):
        return f"{section}.{unknown[1]}: there is no such key. Remove it."
    if missing := re.search(r"missing \d+ required [\w-]+ arguments?: (.*)", text):
        return f"{section}: has no {missing[1]}. Set it."
    if isinstance(error, KeyError):
        return f"{section}: has no {text}. Set it."
    return f"{section}.{text}" if re.match(r"[\w.]+=", text) else f"{section}: {text}"
