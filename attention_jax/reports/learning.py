"""Learning curves: what a run logged, as means over its seeds in their intervals."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from attention_jax.evaluation.metrics import find
from attention_jax.evaluation.statistics import metric_interval
from attention_jax.reports.figures import Figure, Line, colours, draw_bands, legend, log_scale, new_figure, save


def learning_line(metrics: Sequence[Mapping], name: str) -> Line:
    """Steps with the mean over seeds of a metric and the ends of its interval, which the metric can be.

    Numbers that were not finite are left out. One seed has no interval: its band has no height.
    """
    found: dict[int, list[float]] = {}
    for line in metrics:
        if line.get(name) is not None:
            found.setdefault(line["step"], []).append(line[name])
    rows = [metric_interval(name, found[step]) for step in sorted(found)]
    ends = [(low, high) if low == low else (mean, mean) for mean, low, high in rows]
    return sorted(found), [mean for mean, _, _ in rows], [low for low, _ in ends], [high for _, high in ends]


def learning_figure(
    metrics: Sequence[Mapping],
    panels: Mapping[str, Mapping[str, str]],
    path: Path,
    caption: str,
    palette: Mapping[str, str] | None = None,
) -> Figure:
    """A panel a unit, a line a name: `{"BLEU": {"validation": "validation.bleu"}, …}`; perplexities on a log scale."""
    palette = palette or colours(name for names in panels.values() for name in names)
    figure, axes = new_figure(1, len(panels), 4.6, 3.2)
    for axis, (unit, names) in zip(axes[0], panels.items(), strict=True):
        draw_bands(axis, {label: learning_line(metrics, name) for label, name in names.items()}, palette)
        if any(row.is_log for row in map(find, names.values()) if row):
            log_scale(axis, "y")
        axis.set_xlabel("step")
        axis.set_ylabel(unit)
    legend(figure, axes.flat)
    return save(figure, path, caption)
