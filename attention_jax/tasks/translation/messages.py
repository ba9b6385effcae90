"""Lines on stderr about a corpus that was imported."""

from collections.abc import Mapping
from typing import Any

from attention_jax.data.config import DataConfig
from attention_jax.data.splits import SHARE
from attention_jax.training.progress import tell

MOST_HELD_OUT = 0.2  # the largest share of the pairs that is held out without a warning


def tell_import(meta: Mapping[str, Any]) -> None:
    """Print the counts of a corpus's `meta`, and how many pairs were left out, repeated, skipped or truncated."""
    counts = ", ".join(f"{count:,} {name}" for name, count in meta["pairs"].items())
    tell(f"pairs: {counts}; vocabulary: {meta['vocabulary'][0]:,} and {meta['vocabulary'][1]:,}")
    tell_skipped(meta)
    if meta["too_long"]["pairs"]:
        what = {"truncate": "truncated", "skip": "skipped"}[meta["too_long"]["what"]]
        by_split = ", ".join(f"{count:,} {name}" for name, count in meta.get("too_long_by_split", {}).items() if count)
        line = f"{what} {meta['too_long']['pairs']:,} pairs longer than config.data.max_length"
        tell(f"{line}: {by_split}" if by_split else line)


def tell_held_out(meta: Mapping[str, Any], data: DataConfig) -> None:
    """Print a warning if the sizes of a config hold out more than a fifth of the pairs."""
    given = {"validation": data.validation_path, "test": data.test_path}
    drawn = sum(meta["pairs"].get(name, 0) for name, path in given.items() if not path)
    share = drawn / (drawn + meta["pairs"]["train"])
    if share > MOST_HELD_OUT and not data.train and SHARE not in (data.validation, data.test):
        tell(
            f"warning: {share:.0%} of the pairs are held out. Lower --config.data.validation and "
            "--config.data.test; -1 is a tenth.",
        )


def tell_skipped(counts: Mapping[str, Any]) -> None:
    """Print how many pairs an import left out, found more than once or skipped; older imports have fewer counts."""
    if counts.get("left_out"):
        tell(f"left out {counts['left_out']:,} training pairs whose source is in a held-out file")
    if counts.get("in_both"):
        tell(f"kept {counts['in_both']:,} test pairs whose source is in the validation file too")
    for name, count in counts.get("repeated", {}).items():
        if count:
            tell(f"kept {count:,} {name} pairs whose source their file has more than once")
    if counts["bad_lines"]:
        first = ", ".join(counts["first_bad_lines"])
        tell(f"skipped {counts['bad_lines']:,} bad lines, first {first}")
