"""A sweep's sentence, tables and notes, of settings that were compared elsewhere."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from attention_jax.evaluation.comparison import LEVEL, Comparison, Interval, Row
from attention_jax.evaluation.metrics import metric
from attention_jax.reports.figures import Line, Points, colours
from attention_jax.reports.names import short_keys
from attention_jax.reports.page import Estimate, PValue, Table, show

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
BY_SENTENCES = (
    "Intervals are over seeds and sentences, those of differences too. p-values against the baseline: over sentences "
    "by approximate randomization (swapped) and paired bootstrap (resampled, sacreBLEU's), which take the trained "
    "models as they are; over seeds by paired t and exact sign flips. Holm's correction is of the swapped ones."
)
BY_SEEDS = (
    "Intervals are over seeds, those of differences over the seeds that both have. p-values against the baseline: "
    "paired t and exact sign flips over seeds; Holm's correction is of the former."
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
    """Settings compared by a metric: the engine's rows, and of each in the same place what is shown beside it.

    Of several answers, a metric each, the first leads: the others have its settings, order and best.
    """

    comparison: Comparison
    settings: list[Setting]
    notes: tuple[str, ...]  # what a reader must know

    @property
    def metric(self) -> str:
        return self.comparison.metric

    @property
    def tasks(self) -> list[str]:
        """The tasks in the order in which they come."""
        return list(dict.fromkeys(row.measured.task for row in self.comparison.rows))


def palette_of(answer: Answer) -> dict[str, str]:
    """A colour for each setting, whatever its task, the same in every figure."""
    return colours(row.measured.setting for row in answer.comparison.rows)


def named(answer: Answer, place: int) -> str:
    """A setting's name, with its task where there are several."""
    setting, task = answer.comparison.rows[place].measured[:2]
    return f"{setting}, {task}" if len(answer.tasks) > 1 else setting


def said(answers: Sequence[Answer]) -> list[str]:
    """What was found, a line a task: its best setting by the first metric, and whether it differs from the baseline."""
    lead = answers[0]
    if metric(lead.metric).more_is_better is None:
        return [f"Neither more nor less of {lead.metric} is better: no setting is called the best."]
    places = [place for place in lead.comparison.order if place in lead.comparison.best]
    if not places:
        return [f"No setting has {lead.metric} of every seed: none is called the best."]
    return [" ".join((_chosen(lead, place), *_standing(answers, place))) for place in places]


def settings_table(answers: Sequence[Answer]) -> Table:
    """The settings, best first, with every metric; columns that say nothing anywhere are left out.

    With a single metric, differences to the baseline are beside it, with the p-values that are corrected for all.
    """
    lead, order = answers[0], answers[0].comparison.order
    rows, columns = [lead.comparison.rows[place] for place in order], columns_of_settings(lead, order)
    if len({len(row.measured.values) for row in rows}) > 1:
        columns["seeds"] = [len(row.measured.values) for row in rows]
    first = len(columns)
    columns |= {one.metric: [estimate(one.comparison.rows[place].value) for place in order] for one in answers}
    columns[""] = [_mark(lead, place) for place in order]
    if len(answers) == 1:
        columns["difference"] = [estimate(row.difference) for row in rows]
        columns["p, Holm"] = [_p(row.p_adjusted) for row in rows]
    columns["not counted"] = [_not_counted(lead.settings[place].ends) for place in order]
    bold = {
        (height, first + number)
        for height, place in enumerate(order)
        for number in range(len(answers))
        if place in lead.comparison.best
    }
    what = lead.metric if len(answers) == 1 else f"{len(order)} settings"
    return _kept(f"{what}{_over(rows)}", columns, bold)


def difference_tables(answers: Sequence[Answer]) -> list[Table]:
    """Of each metric, the differences to the baseline with their intervals and every p-value."""
    tables = []
    for answer in answers:
        order = [place for place in answer.comparison.order if answer.comparison.rows[place].difference is not None]
        rows = [answer.comparison.rows[place] for place in order]
        columns = columns_of_settings(answer, order) | {"difference": [estimate(row.difference) for row in rows]}
        columns |= {title: [_p(getattr(row, name)) for row in rows] for title, name in TESTS.items()}
        table = _kept(f"{answer.metric}: differences to the baseline", columns, ())
        tables += [table._replace(folded=len(answers) == 1)] if rows else []
    return tables


def cost_tables(answer: Answer) -> list[Table]:
    """What a seed of each setting cost, where it is known of any."""
    order = answer.comparison.order
    costs = {title: [answer.settings[place].cost.get(key) for place in order] for title, key in COSTS.items()}
    if not any(value is not None for values in costs.values() for value in values):
        return []
    costs["parameters"] = [None if value is None else round(value) for value in costs["parameters"]]
    return [_kept("Costs of a seed", columns_of_settings(answer, order) | costs, ())]


def cells_table(answer: Answer, seeds: Mapping[str, Sequence[int]]) -> Table:
    """Each setting's cells: links to their folders, by their seeds."""
    from markupsafe import Markup

    def links(cells):
        found = [(name, ", ".join(map(str, seeds[name]))) for name in cells]
        return Markup(" ").join(Markup('<a href="cells/{}/">{}</a>').format(*one) for one in found)

    rows = [(named(answer, place), links(answer.settings[place].cells)) for place in answer.comparison.order]
    many = sum(len(setting.cells) for setting in answer.settings) > MANY_CELLS
    return Table("Cells", ("setting", "seeds"), rows, "cells.csv has every number of every seed.", folded=many)


def notes_of(answers: Sequence[Answer]) -> list[str]:
    """What intervals and tests are, and what else a reader must know."""
    every = [row for one in answers for row in one.comparison.rows]
    tests = []
    if any(row.p_sentences is not None for row in every):
        tests = [BY_SENTENCES]
    elif any(row.p_seeds is not None for row in every):
        tests = [BY_SEEDS]
    chosen = [f"Bold: what is best by {answers[0].metric}."] if len(answers) > 1 else []
    return list(dict.fromkeys((*chosen, *tests, *(note for one in answers for note in one.notes))))


def columns_of_settings(answer: Answer, order: Sequence[int]) -> dict[str, list[Any]]:
    """What tells settings from one another, a column a key."""
    short = short_keys([setting.overrides for setting in answer.settings])
    return {name: [answer.settings[place].overrides.get(key, "") for place in order] for key, name in short.items()}


def estimate(found: Interval | None) -> Estimate | None:
    """A mean and its interval as a table's cell."""
    return None if found is None else Estimate(*found)


def _chosen(answer: Answer, place: int) -> str:
    """Which setting is the best of how many, by which metric, over how many seeds."""
    found = answer.comparison
    own = found.rows[place]
    rivals = [row for row in found.rows if row.measured.task == own.measured.task]
    is_alone = sum(found.rows[other].measured.task == own.measured.task for other in found.best) == 1
    first = "the best" if is_alone else "one of the best"
    return (
        f"{named(answer, place)}: {found.metric} {estimate(own.value)}, {first} of {len(rivals)} settings over "
        f"{_seeds(len(own.measured.values))}."
    )


def _standing(answers: Sequence[Answer], place: int) -> Iterator[str]:
    """Whether a setting's difference to its baseline is shown, by each metric, and what other metrics are of it."""
    for answer in answers:
        own, baseline = answer.comparison.rows[place], answer.comparison.baselines[place]
        if answer is not answers[0] and own.value is not None:
            yield f"Its {answer.metric} is {estimate(own.value)}."
        if place == baseline and answer is answers[0]:
            yield "It is the baseline."
        if own.difference is not None and baseline is not None:
            yield _difference(own, answer.comparison.rows[baseline].measured.setting)


def _difference(own: Row, baseline: str) -> str:
    told = f"The difference to the baseline ({baseline}) is {estimate(own.difference)}"
    if own.p_adjusted is None:
        return f"{told}, of one seed: no test."
    verdict = "shown" if own.p_adjusted < LEVEL else "not shown to be more than chance"
    shown = show(PValue(own.p_adjusted))
    return f"{told}: {verdict} (p {shown if shown[0] in '<>' else f'= {shown}'}, Holm)."


def _over(rows: Sequence[Row]) -> str:
    counts = {len(row.measured.values) for row in rows}
    seeds = "seeds" if len(counts) > 1 else _seeds(*counts)
    has_intervals = any(row.value is not None and row.value.low is not None for row in rows)
    return f", {'means over ' if counts != {1} else ''}{seeds}{' with 95% intervals' if has_intervals else ''}"


def _seeds(count: int) -> str:
    return f"{count} seeds" if count != 1 else "one seed"


def _kept(title: str, columns: Mapping[str, Sequence[Any]], best: Any) -> Table:
    """A table without the columns that are empty; none of those before the best is."""
    kept = {name: values for name, values in columns.items() if any(value not in (None, "") for value in values)}
    return Table(title, tuple(kept), list(zip(*kept.values(), strict=True)), best=best)


def _mark(answer: Answer, place: int) -> str:
    marks = {"best": place in answer.comparison.best, "baseline": place == answer.comparison.baselines[place]}
    return ", ".join(name for name, holds in marks.items() if holds)


def _not_counted(ends: Sequence[str]) -> str:
    return ", ".join(f"{ends.count(end)} {end}" for end in dict.fromkeys(ends))


def _p(found: float | None) -> PValue | None:
    return None if found is None else PValue(found)
