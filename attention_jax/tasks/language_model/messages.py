"""Lines on stderr about a text that was imported."""

import sys

from attention_jax.data.text import Text


def tell_text(text: Text) -> None:
    """Print the text's counts, and how many tokens its tokenizer does not know."""
    splits = text.meta["splits"]
    counts = ", ".join(f"{found['tokens']:,} {name}" for name, found in splits.items())
    print(f"tokens: {counts}; vocabulary: {text.vocabulary:,}", file=sys.stderr)
    unknown = ", ".join(f"{found['unknown']:,} {name}" for name, found in splits.items() if found["unknown"])
    if unknown:
        print(f"tokens of characters that are not in the training text: {unknown}", file=sys.stderr)
