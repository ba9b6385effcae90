"""Lines on stderr about a text that was imported."""

from collections.abc import Mapping

from ml_collections import ConfigDict

from attention_jax.data.text import Text
from attention_jax.training.progress import tell

MOST_HELD_OUT = 0.2  # the largest share of a text that is held out without a warning


def tell_text(text: Text, data: ConfigDict) -> None:
    """Print the text's counts, and its unknown tokens; warn if far more of it is held out than was asked for.

    Documents are drawn by their number: of a few that differ in length, a tenth may be most of the text.
    """
    if data.source == "text" and not data.path:
        tell("no --config.data.path: the text is generated sentences; --config.data.path=FILE takes one of yours")
    splits = text.meta["splits"]
    counts = ", ".join(f"{found['tokens']:,} {name}" for name, found in splits.items())
    tell(f"tokens: {counts}; vocabulary: {text.vocabulary:,}")
    _tell_held_out(splits, data)
    unknown = ", ".join(f"{found['unknown']:,} {name}" for name, found in splits.items() if found["unknown"])
    if unknown:
        tell(f"tokens of characters that are not in the training text: {unknown}")


def _tell_held_out(splits: Mapping[str, Mapping[str, int]], data: ConfigDict) -> None:
    shares = {"validation": data.held_out, "test": data.held_out_test}
    paths = {"validation": data.validation_path, "test": data.test_path}
    drawn = [name for name, path in paths.items() if name in splits and not path]
    held_out = sum(splits[name]["tokens"] for name in drawn)
    share = held_out / (held_out + splits["train"]["tokens"])
    if share > max(MOST_HELD_OUT, 2 * sum(shares[name] for name in drawn)):
        tell(
            f"warning: {share:.0%} of the text is held out: whole documents are drawn, and they differ in length. Name "
            "files instead, as --config.data.validation_path=FILE.",
        )
