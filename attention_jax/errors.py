"""The exceptions whose message is for the user, one line that names the file or key and the fix; and the extras."""

import importlib.util

# What is not installed with the package alone, and the extra that brings it: pip install "attention_jax[nmt]".
EXTRAS = {
    "sacrebleu": "nmt",
    "sacremoses": "nmt",
    "sentencepiece": "nmt",
    "tensorflow_datasets": "tfds",
    "importlib_resources": "tfds",
    "submitit": "slurm",
    "optuna": "search",
    "libtpu": "compile",
    "gcsfs": "gcs",
    "tokamax": "tokamax",
}


class UserError(ValueError):
    """Something the user gave cannot be used; the launcher prints the message and exits with status 1."""


class NoAnswer(Exception):
    """An object store did not do what it was asked for; told as a UserError is, and no damage of what it has."""


def require(module: str) -> None:
    """Raise UserError where a module that an extra of this package brings is not installed."""
    if importlib.util.find_spec(module) is None:
        raise UserError(missing(module))


def missing(module: str) -> str:
    """What to say of a module that is not installed; "" where no extra of this package brings it."""
    package = module.partition(".")[0]
    extra = EXTRAS.get(package)
    return f'{package} is not installed, and is needed here: pip install "attention_jax[{extra}]".' if extra else ""
