"""What an experiment says of a whole sweep, and what it says it from: plain records."""

from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

from attention_jax.reports.figures import Figure
from attention_jax.reports.page import Table


class FinishedCell(NamedTuple):
    """A cell of a sweep that reached its end."""

    config: ConfigDict
    path: Path
    result: dict
    overrides: dict[str, Any]  # that make it what it is, its seeds too


class Conclusion(NamedTuple):
    """What an experiment says of a whole sweep, beside the table of its settings."""

    result: dict
    figures: list[Figure]
    tables: list[Table]
    leads: bool = True  # whether it comes before the table of settings; what is of the test split does not
