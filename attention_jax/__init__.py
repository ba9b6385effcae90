"""attention_jax: attention from kernel regression to the Transformer, as pure functions and thin modules.

`attention_jax.ops`, `attention_jax.models` and the other rooms are imported when they are first asked for.
"""

import importlib
import pkgutil
from types import ModuleType

from attention_jax import _jaxlib

__version__ = "0.1.0"
_jaxlib.mend()


def __getattr__(name: str) -> ModuleType:
    """A room, imported (PEP 562)."""
    if name not in __dir__():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    found = [module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")]
    return sorted({*globals(), *found})
