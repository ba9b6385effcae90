"""The one exception whose message is for the user, one line that names the file or key and the fix; and the extras."""

# What is not installed with the package alone, and the extra that brings it: pip install "attention_jax[nmt]".
EXTRAS = {
    "sacrebleu": "nmt",
    "sacremoses": "nmt",
    "sentencepiece": "nmt",
    "tensorflow_datasets": "tfds",
    "importlib_resources": "tfds",
    "submitit": "slurm",
}


class UserError(ValueError):
    """Something the user gave cannot be used; the launcher prints the message and exits with status 1."""


def extra_of(module: str) -> str:
    """The extra of the package that brings a module of another; "" where none does."""
    return EXTRAS.get(module.partition(".")[0], "")
