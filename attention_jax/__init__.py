"""attention_jax: attention from kernel regression to the Transformer, as pure functions and thin modules.

`attention_jax.ops`, `attention_jax.models` and the other rooms are imported when they are first asked for, and so is
`attention_jax.load`, which opens a trained run.
"""

import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

from attention_jax import _jaxlib

if TYPE_CHECKING:
    from attention_jax.launcher.opening import load as load

__version__ = "0.1.0"
_jaxlib.mend()


def __getattr__(name: str) -> Any:
    """A room, imported (PEP 562), or `load`."""
    if name == "load":
        return importlib.import_module(f"{__name__}.launcher.opening").load
    if name not in __dir__():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    found = [module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")]
    return sorted({*globals(), *found, "load"})
