"""A text as two streams of tokens: its first part to train on, the rest held out."""

from pathlib import Path
from typing import NamedTuple

import numpy as np

from attention_jax.data import text_importing
from attention_jax.data.config import TextConfig


class Text(NamedTuple):
    """Tokens to train on and held out, and how many different ones there are."""

    train: np.ndarray
    held_out: np.ndarray
    vocabulary: int


def load_text(folder: Path, path: str, tokenizer: str, vocabulary: int, held_out: float, seed: int) -> Text:
    """The text of a file, or the embedded one where `path` is empty, tokenized once into `folder`.

    The last share `held_out` of it is not trained on. Raises UserError for a file that cannot be read, or one in
    `folder` that is not the one of the import.
    """
    text = text_importing.load_text(folder, _config(path, tokenizer, vocabulary, held_out, seed))
    return Text(text.splits["train"].tokens, text.splits["validation"].tokens, text.vocabulary)


def identify_text(path: str) -> str:
    """What tells a text from others: a digest of its file. Raises UserError where there is none."""
    return text_importing.identify_text(_config(path))


def require_usable(tokenizer: str, held_out: float) -> None:
    """Raise UserError for values that no text can be read with."""
    text_importing.require_usable(_config("", tokenizer, held_out=held_out))


def _config(path: str, tokenizer: str = "characters", vocabulary: int = 0, held_out: float = 0.1, seed: int = 0):
    return TextConfig("text", path, "", "", "", held_out, 0.0, "text", tokenizer, vocabulary, seed)
