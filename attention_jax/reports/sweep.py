"""A sweep's sentence, tables and notes, of settings that were compared elsewhere."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from attention_jax.evaluation.comparison import LEVEL, Comparison, Interval, Row
from attention_jax.evaluation.metrics import metric
from attention_jax.reports.figures import Line, Points, colours
from attention_jax.reports.names import short_keys
from attention_jax.reports.page import Estimate, PValue, Ratio, Table

TESTS = {
    "p, t": "p_seeds",
    "p, flips": "p_flips",
    "p, swapped": "p_sentences",
    "p, resampled": "p_bootstrap",
    "p, Holm": "p_adjusted",
}
COSTS = {
    "parameters": "cost.parameters",
    "training FLOPs": "cost.flops",
    "seconds": "cost.seconds",
    "seconds a step": "cost.step_seconds",
    "tokens a second": "cost.tokens_per_second",
}
MANY_CELLS = 40  # from which on they are folded
MOST_NAMED = 3  # of settings that tie
BY_SENTENCES = (
    "Intervals are over seeds and sentences, those of differences too. p-values against the baseline: over sentences "
    "by approximate randomization (swapped) and paired bootstrap (resampled, sacreBLEU's), which take the trained "
    "models as they are; over seeds by paired t and exact sign flips. Holm's correction is of the swapped ones, over "
    "the differences of this metric."
)
BY_SEEDS = (
    "Intervals are over seeds, those of differences over the seeds that both have. p-values against the baseline: "
    "paired t and exact sign flips over seeds; Holm's correction is of the former, over the differences of this "
    "metric. Each interval is of 95% by itself: one that leaves out 0 may have a corrected p-value above .05."
)
LUCKY = "The best is chosen by the seeds that its value is of: the best of many alike is called so by luck."
OVER_SENTENCES = "Intervals are over seeds and sentences."
HOW = (BY_SENTENCES, OVER_SENTENCES, BY_SEEDS)
RATIOS = (
    "A ratio is a setting's value divided by the baseline's, the geometric mean over seeds: below ×1 is less. Its "
    "interval and its tests are of logarithms."
)


class Curve(NamedTuple):
    """What was logged of a metric: means over seeds, and the ends of their intervals."""

    name: str
    steps: Points
    means: Points
    lows: Points
    highs: Points

    @property
    def line(self) -> Line:
        """What is drawn of it."""
        return self.steps, self.means, self.lows, self.highs


class Setting(NamedTuple):
    """Cells that differ in seeds alone: what a reader is shown beside what was measured of them."""

    overrides: dict[str, Any]
    cost: dict[str, float]
    ends: list[str]  # of the cells without a value
    curve: Curve
    attention: dict[str, Any] | None
    cells: tuple[str, ...]  # their names


class Answer(NamedTuple):
    """Settings compared by a metric: the engine's rows, and at the same indices what is shown beside each.

    Of several answers, a metric each, the first leads: the others have its settings, order and best.
    """

    comparison: Comparison
    settings: list[Setting]
    notes: tuple[str, ...]  # what a reader must know

    @property
    def metric(self) -> str:
        return self.comparison.metric

    @property
    def groups(self) -> list[str]:
        """The groups in the order in which they come."""
        return list(dict.fromkeys(row.measured.group for row in self.comparison.rows))


def has_best(answer: Answer) -> bool:
    """Whether more, or less, of the metric is better."""
    return metric(answer.metric).more_is_better is not None


def palette_of(answer: Answer) -> dict[str, str]:
    """A colour for each setting, whatever its group, the same in every figure."""
    return colours(row.measured.setting for row in answer.comparison.rows)


def named(answer: Answer, index: int) -> str:
    """A setting's name, with its group where there are several."""
    setting, group = answer.comparison.rows[index].measured[:2]
    return f"{setting}, {group}" if len(answer.groups) > 1 else setting


def said(answers: Sequence[Answer]) -> list[str]:
    """What was found, a line a group: its best setting by the first metric, and how it differs from the baseline."""
    lead = answers[0]
    if not has_best(lead):
        return [f"Neither more nor less of {lead.metric} is better: no setting is called the best."]
    best = {
        group: [index for index in _in_group(lead, group) if index in lead.comparison.best] for group in lead.groups
    }
    return [_said_of_group(answers, group, indices) for group, indices in best.items()]


def settings_table(answers: Sequence[Answer]) -> Table:
    """The settings, best first, with every metric; columns that say nothing anywhere are left out.

    With a single metric, differences to the baseline are beside it, with the p-values that are corrected for all.
    """
    lead, order = answers[0], answers[0].comparison.order
    rows, columns = [lead.comparison.rows[index] for index in order], columns_of_settings(lead, order)
    if len({len(row.measured.values) for row in rows}) > 1:
        columns["seeds"] = [len(row.measured.values) for row in rows]
    columns |= {one.metric: [estimate(one.comparison.rows[index].value) for index in order] for one in answers}
    columns[""] = [_mark(lead, index) for index in order]
    if len(answers) == 1:
        columns[lead.comparison.contrast] = [difference(lead.comparison, row) for row in rows]
        columns["p, Holm"] = [_p(row.p_adjusted) for row in rows]
    columns["not counted"] = [_not_counted(lead.settings[index].ends) for index in order]
    chosen = [height for height, index in enumerate(order) if index in lead.comparison.best]
    bold = [(height, one.metric) for height in chosen for one in answers]
    what = lead.metric if len(answers) == 1 else f"{len(order)} settings"
    return _kept(f"{what}{_over(rows)}", columns, bold)


def difference_tables(answers: Sequence[Answer]) -> list[Table]:
    """Of each metric, the differences to the baseline with their intervals and every p-value."""
    tables = []
    for answer in answers:
        found, what = answer.comparison, answer.comparison.contrast
        order = [index for index in found.order if found.rows[index].difference is not None]
        rows = [found.rows[index] for index in order]
        columns = columns_of_settings(answer, order) | {what: [difference(found, row) for row in rows]}
        columns |= {title: [_p(getattr(row, name)) for row in rows] for title, name in TESTS.items()}
        table = _kept(f"{answer.metric}: {what}s to the baseline", columns)
        tables += [table._replace(folded=len(answers) == 1)] if rows else []
    return tables


def cost_tables(answer: Answer) -> list[Table]:
    """What a seed of each setting cost, where it is known of any."""
    order = answer.comparison.order
    costs = {title: [answer.settings[index].cost.get(key) for index in order] for title, key in COSTS.items()}
    if not any(value is not None for values in costs.values() for value in values):
        return []
    costs["parameters"] = [None if value is None else round(value) for value in costs["parameters"]]
    return [_kept("Costs of a seed", columns_of_settings(answer, order) | costs)]


def cells_table(answer: Answer, seeds: Mapping[str, Sequence[int]]) -> Table:
    """Each setting's cells: links to their folders, by their seeds."""
    from markupsafe import Markup

    def links(cells):
        found = [(name, ", ".join(map(str, seeds[name]))) for name in cells]
        return Markup(" ").join(Markup('<a href="cells/{}/">{}</a>').format(*one) for one in found)

    rows = [(named(answer, index), links(answer.settings[index].cells)) for index in answer.comparison.order]
    many = sum(len(setting.cells) for setting in answer.settings) > MANY_CELLS
    return Table("Cells", ("setting", "seeds"), rows, "cells.csv has every number of every seed.", folded=many)


def notes_of(answers: Sequence[Answer]) -> list[str]:
    """What intervals and tests are, and what else a reader must know."""
    tests = {note: [one.metric for one in answers if _how(one.comparison) == note] for note in HOW}
    told = {note: names for note, names in tests.items() if names}
    shown = [note if len(told) == 1 else f"Of {', '.join(names)}: {note}" for note, names in told.items()]
    shown += [RATIOS] * any(has_ratios(one.comparison) for one in answers)
    chosen = [f"Bold: what is best by {answers[0].metric}."] if len(answers) > 1 else []
    shown += [LUCKY] * (bool(answers[0].comparison.best) and len(answers[0].settings) > 1)
    return list(dict.fromkeys((*chosen, *shown, *(note for one in answers for note in one.notes))))


def _how(comparison: Comparison) -> str:
    """What intervals and tests are over; "" of seeds without a test."""
    if comparison.is_over_sentences:
        return BY_SENTENCES if any(row.difference is not None for row in comparison.rows) else OVER_SENTENCES
    return BY_SEEDS if any(row.p_seeds is not None for row in comparison.rows) else ""


def columns_of_settings(answer: Answer, order: Sequence[int]) -> dict[str, list[Any]]:
    """What tells settings from one another, a column a key."""
    short = short_keys([setting.overrides for setting in answer.settings])
    return {name: [answer.settings[index].overrides.get(key, "") for index in order] for key, name in short.items()}


def estimate(found: Interval | None) -> Estimate | None:
    """A mean and its interval as a table's cell."""
    return None if found is None else Estimate(*found)


def difference(comparison: Comparison, row: Row) -> Estimate | None:
    """A setting's difference to its baseline as a table's cell: a ratio where the metric is on the logarithm."""
    if row.difference is None:
        return None
    return Ratio(*row.difference) if comparison.contrast == "ratio" else Estimate(*row.difference)


def has_ratios(comparison: Comparison) -> bool:
    """Whether settings are compared by ratios, which a note explains."""
    return comparison.contrast == "ratio" and any(row.difference is not None for row in comparison.rows)


def tested(comparison: Comparison, row: Row) -> str:
    """A setting's difference to its baseline and whether it is shown; "" where there is none.

    A test over sentences takes the trained models as they are, an interval over seeds and sentences does not, unless
    it is of a single seed.
    """
    found = difference(comparison, row)
    if found is None:
        return ""
    if row.p_adjusted is None:
        return f"{found}, without a test"
    verdict, shown = "shown", str(PValue(row.p_adjusted))
    if row.p_adjusted >= LEVEL:
        verdict = "not shown to be more than chance"
    elif row.p_sentences is not None and (row.p_flips is None or _may_be_none(comparison, row)):
        verdict = "shown of these trained models, not of other seeds"
    return f"{found}, {verdict} (p {shown if shown[0] in '<>' else f'= {shown}'}, Holm)"


def _may_be_none(comparison: Comparison, row: Row) -> bool:
    """Whether a difference's interval holds that there is none."""
    if row.difference is None or row.difference.low is None or row.difference.high is None:
        return False
    return row.difference.low <= (1 if comparison.contrast == "ratio" else 0) <= row.difference.high


def _in_group(answer: Answer, group: str) -> list[int]:
    return [index for index in answer.comparison.order if answer.comparison.rows[index].measured.group == group]


def _said_of_group(answers: Sequence[Answer], group: str, indices: Sequence[int]) -> str:
    """Which setting is the best, by which metric, of how many over how many seeds, and how it stands."""
    lead = answers[0]
    within = f"{group}: " if len(lead.groups) > 1 else ""
    if not indices:
        return f"{within}No setting has {lead.metric} of every seed: none is called the best."
    own = lead.comparison.rows[indices[0]]
    over = f"of {len(_in_group(lead, group))} settings over {_seeds(len(own.measured.values))}"
    if len(indices) == 1:
        told = f"{within}{own.measured.setting} has the best {lead.metric} {over}, {estimate(own.value)}."
        return " ".join((told, *_standing(answers, indices[0])))
    names = "; ".join(lead.comparison.rows[index].measured.setting for index in indices[:MOST_NAMED])
    more = f" and {len(indices) - MOST_NAMED} more" if len(indices) > MOST_NAMED else ""
    return f"{within}{names}{more} share the best {lead.metric} {over}, {estimate(own.value)}."


def _standing(answers: Sequence[Answer], index: int) -> Iterator[str]:
    """Whether a setting's difference to its baseline is shown, and what other metrics say of it."""
    found, *others = [one.comparison for one in answers]
    baseline = found.baselines[index]
    if index == baseline:
        yield "It is the baseline."
    elif baseline is not None and (told := tested(found, found.rows[index])):
        yield f"Its {found.contrast} to the baseline ({found.rows[baseline].measured.setting}) is {told}."
    parts = [_of_other(one, one.rows[index]) for one in others]
    if any(parts):
        yield f"By other metrics: {'; '.join(filter(None, parts))}."


def _of_other(comparison: Comparison, row: Row) -> str:
    told = tested(comparison, row)
    found = f"{comparison.metric} {estimate(row.value)}" + (f", {comparison.contrast} {told}" if told else "")
    return found if row.value else ""


def _over(rows: Sequence[Row]) -> str:
    counts = {len(row.measured.values) for row in rows}
    seeds = "seeds" if len(counts) > 1 else _seeds(*counts)
    has_intervals = any(row.value is not None and row.value.low is not None for row in rows)
    return f", {'means over ' if counts != {1} else ''}{seeds}{' with 95% intervals' if has_intervals else ''}"


def _seeds(count: int) -> str:
    return f"{count} seeds" if count != 1 else "one seed"


def _kept(title: str, columns: Mapping[str, Sequence[Any]], bold: Iterable[tuple[int, str]] = ()) -> Table:
    """A table without the columns that are empty; in bold are (row, column by its name)."""
    kept = {name: values for name, values in columns.items() if any(value not in (None, "") for value in values)}
    best = {(row, [*kept].index(name)) for row, name in bold}
    return Table(title, tuple(kept), list(zip(*kept.values(), strict=True)), best=best)


def _mark(answer: Answer, index: int) -> str:
    marks = {"best": index in answer.comparison.best, "baseline": index == answer.comparison.baselines[index]}
    return ", ".join(name for name, holds in marks.items() if holds)


def _not_counted(ends: Sequence[str]) -> str:
    return ", ".join(f"{ends.count(end)} {end}" for end in dict.fromkeys(ends))


def _p(found: float | None) -> PValue | None:
    return None if found is None else PValue(found)
