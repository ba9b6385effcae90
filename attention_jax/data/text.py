"""A language model's text in its folder: memory-mapped tokens, and where documents begin.

DATA/meta.json             the tokenizer's name, each split's counts, digests of all other files
DATA/text.vocabulary       characters, or a sentencepiece model
DATA/SPLIT.npy             all tokens end to end, in the smallest type that holds the vocabulary
DATA/SPLIT.documents.npy   each document's start, and the end of the last
"""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Int

from attention_jax.data.digests import read_meta, require_intact
from attention_jax.data.sentences import open_array
from attention_jax.data.text_tokenizers import TextTokenizer, load_text_tokenizer

VOCABULARY = "text.vocabulary"
# Of meta.json, with their types.
KEYS = {"tokenizer": str, "vocabulary": int, "has_ends": bool, "splits": dict, "fingerprint": str}


class Counts(NamedTuple):
    """How much text a split has. Losses are divided by these for bits a byte and perplexity a word."""

    documents: int
    bytes: int  # of UTF-8
    characters: int
    words: int  # separated by white space
    tokens: int  # documents' ends included
    unknown: int  # `UNK` tokens; no loss counts the characters that they hide


class TextSplit(NamedTuple):
    """Document i is `tokens[documents[i]:documents[i + 1]]`; if `Text.has_ends`, its last token is `EOS`."""

    tokens: Int[np.ndarray, " tokens"]
    documents: Int[np.ndarray, " documents+1"]
    counts: Counts


class Text(NamedTuple):
    """An imported text, with splits "train", "validation" and, if one was asked for, "test"."""

    splits: dict[str, TextSplit]
    tokenizer: TextTokenizer
    meta: dict

    @property
    def vocabulary(self) -> int:
        """How many different tokens there are, specials included."""
        return self.meta["vocabulary"]

    @property
    def has_ends(self) -> bool:
        """Whether the text has documents, each with an end token."""
        return self.meta["has_ends"]

    @property
    def fingerprint(self) -> str:
        """The digest of its tokens."""
        return self.meta["fingerprint"]


def open_text(folder: Path) -> Text:
    """An imported text, its arrays memory-mapped. Raises UserError if a file is not the import's."""
    meta = read_meta(folder, KEYS)
    names = [f"{split}{kind}.npy" for split in meta["splits"] for kind in ("", ".documents")]
    require_intact(folder, meta, (*names, VOCABULARY), names)
    splits = {name: open_split(folder, name, Counts(**counts)) for name, counts in meta["splits"].items()}
    return Text(splits, load_text_tokenizer(meta["tokenizer"], folder / VOCABULARY), meta)


def open_split(folder: Path, name: str, counts: Counts) -> TextSplit:
    """A split's arrays, memory-mapped."""
    return TextSplit(open_array(folder / f"{name}.npy"), open_array(folder / f"{name}.documents.npy"), counts)
