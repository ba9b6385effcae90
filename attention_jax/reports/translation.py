"""Figures and tables of translation."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from attention_jax.reports.extrapolation import length_curves
from attention_jax.reports.figures import Figure, Line, colours
from attention_jax.reports.learning import learning_figure
from attention_jax.reports.page import Table
from attention_jax.reports.run import Flat, by_length_table, headline_table, measured_line

HELD_OUT = ("validation", "test")
COLOURS = colours(("train", *HELD_OUT))
HEADLINES = {
    "BLEU": "bleu",
    "chrF": "chrf",
    "loss, nats a target token": "loss",
    "loss without dropout": "nll",
    "perplexity a word": "perplexity_per_word",
    "perplexity a token": "perplexity",
    "alignment error rate": "alignment_error_rate",
}
BY_LENGTH = {"BLEU": "bleu_by_length", "perplexity a token": "perplexity_by_length"}
LONG = {  # by config.data.on_long
    "error": "longer than config.data.max_length",
    "truncate": "truncated: longer than config.data.max_length",
    "skip": "skipped: longer than config.data.max_length",
}
CAPTION = (
    "By training step{}. The loss in training is with the config's dropout and label smoothing, in validation without."
)


def learning_curves(metrics: Sequence[dict], path: Path) -> Figure:
    """Loss and BLEU against the step, means over seeds in their intervals."""
    panels = {
        "nats a target token": {"train": "train.loss", "validation": "validation.loss"},
        "BLEU": {"validation": "validation.bleu"},
    }
    held_out = any("validation.loss" in line for line in metrics)
    shown = panels if held_out else {"nats a target token": {"train": "train.loss"}}
    over = ", means over seeds in their 95% intervals" if len({line["seed"] for line in metrics}) > 1 else ""
    return learning_figure(metrics, shown, path, CAPTION.format(over), COLOURS)


def length_figure(result: Flat, path: Path) -> Figure:
    """BLEU and perplexity of each split's sentences, in groups of about equal size, against their length."""
    panels: dict[str, dict[str, Line]] = {}
    for title, name in BY_LENGTH.items():
        for split in HELD_OUT:
            line = measured_line(result, f"{split}.{name}")
            if len(line[0]):
                panels.setdefault(title, {})[split] = line
    caption = "By the length of the source, in groups of about as many sentences, each at its longest."
    return length_curves(panels, None, path, xlabel="source words, at most", caption=caption, palette=COLOURS)


def result_tables(result: Flat) -> list[Table]:
    """Headline numbers, and scores by the length of the source."""
    by_length = by_length_table(result, BY_LENGTH, HELD_OUT, "By the length of the source", "words")
    return [headline_table(result, HEADLINES, ("train", *HELD_OUT)), *([by_length] if by_length.rows else [])]


def data_table(meta: dict) -> Table:
    """How many pairs each split has, and what was kept out of it or cut; empty where the import did not count it.

    A split without a file of its own is drawn from the training file; what a held-out split lacks is in the note.
    """
    too_long, bad_lines = meta.get("too_long_by_split", {}), meta.get("bad_lines_by_file", {})
    left_out = meta.get("left_out", "")
    rows = [
        (name, pairs, too_long.get(name, ""), bad_lines.get(name, ""), left_out if name == "train" else "")
        for name, pairs in meta["pairs"].items()
    ]
    total = ("all", sum(meta["pairs"].values()), meta["too_long"]["pairs"], meta["bad_lines"], left_out)
    columns = ("split", "pairs", LONG[meta["too_long"]["what"]], "skipped: bad lines of its file")
    note = " ".join(line for name in meta["pairs"] if name != "train" for line in _lacking(name, meta))
    return Table("Data", (*columns, "left out: source is in a held-out file"), [*rows, total], note)


def _lacking(name: str, meta: dict) -> Iterator[str]:
    """What a held-out split is without, a sentence each."""
    skipped = meta.get("too_long_by_split", {}).get(name, 0) if meta["too_long"]["what"] == "skip" else 0
    bad_lines = meta.get("bad_lines_by_file", {})
    kept_out = {"pairs that are too long": skipped, "bad lines of its file": bad_lines.get(name, 0)}
    found = " and ".join(f"{count:,} {what}" for what, count in kept_out.items() if count)
    if found:
        whole = "its file has" if name in bad_lines else "were drawn"
        yield f"{name} lacks {found}: its figures are of fewer sentences than {whole}."
    if name not in bad_lines and bad_lines.get("train"):
        yield f"{name} was drawn without {bad_lines['train']:,} bad lines of the training file."


def translation_table(
    split: str, sources: Sequence[str], hypotheses: Sequence[str], references: Sequence[Sequence[str]]
) -> Table:
    """Translations beside their references."""
    rows = [
        (source, hypothesis, " / ".join(group))
        for source, hypothesis, group in zip(sources, hypotheses, references, strict=True)
    ]
    return Table(f"Translations ({split})", ("source", "translation", "references"), rows)
