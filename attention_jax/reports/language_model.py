"""Figures and tables of a language model trained on a text."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from attention_jax.reports.figures import Figure, colours
from attention_jax.reports.learning import learning_figure
from attention_jax.reports.page import Table
from attention_jax.reports.run import Flat, headline_table

HELD_OUT = ("validation", "test")
HEADLINES = {
    "nats a token": "loss",
    "perplexity a token": "perplexity",
    "perplexity a word": "perplexity_per_word",
    "bits a byte": "bits_per_byte",
}
PANELS = {
    "nats a token": {"train": "train.loss", "validation": "validation.loss"},
    "bits a byte": {"validation": "validation.bits_per_byte"},
}
CAPTION = (
    "By training step{}. The loss in training is with the config's dropout and label smoothing, in validation without. "
    "Validation is of the first config.evaluate.tokens tokens that are held out, the final numbers are of all."
)


def learning_curves(metrics: Sequence[dict], path: Path) -> Figure:
    """Loss and bits a byte against the step, means over seeds in their intervals."""
    over = ", means over seeds in their 95% intervals" if len({line["seed"] for line in metrics}) > 1 else ""
    return learning_figure(metrics, PANELS, path, CAPTION.format(over), colours(("train", *HELD_OUT)))


def result_table(result: Flat) -> Table:
    """Headline numbers, with intervals over seeds."""
    return headline_table(result, HEADLINES, ("train", *HELD_OUT))


def text_table(splits: Mapping[str, Mapping[str, int]]) -> Table:
    """What each split holds; `splits` are the import's counts."""
    columns = list(next(iter(splits.values())))
    return Table("Text", ("split", *columns), [(name, *found.values()) for name, found in splits.items()])


def samples_table(samples: Sequence[str], seed: int) -> Table:
    """Texts that the model wrote."""
    rows = list(enumerate(samples, start=1))
    return Table(f"Written without a prompt, seed {seed}", ("", "text"), rows)
