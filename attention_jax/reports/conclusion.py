"""What an experiment says of a whole sweep, and what it says it from: plain records."""

from pathlib import Path
from typing import NamedTuple

from ml_collections import ConfigDict

from attention_jax.reports.figures import Figure
from attention_jax.reports.page import Table


class FinishedCell(NamedTuple):
    """A cell of a sweep, as a conclusion reads it.

    `result` has the `seeds` that are reported and, as `members`, what was measured of each. Its `status` is "diverged"
    where nothing was, for a seed that failed, is missing or was dropped at a rung is as lost as one that diverged.
    """

    config: ConfigDict
    path: Path
    result: dict
    setting: str  # what the cells that differ in seeds alone are called
    group: str  # the settings that it is compared with; "": all of them
    baseline: str  # the setting that others of its group are compared with; "": there is none


class Conclusion(NamedTuple):
    """What an experiment says of a whole sweep, beside the table of its settings."""

    result: dict
    figures: list[Figure]
    tables: list[Table]
    leads: bool = True  # whether it comes before the table of settings; what is of the test split does not
    said: tuple[str, ...] = ()  # the first sentences of all; empty: what the table of settings says
    notes: tuple[str, ...] = ()
