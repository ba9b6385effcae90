"""The report: one self-contained HTML page, light or dark as its reader's, and fit to print.

It opens with what was found or done, the first tables and the figures; then come other tables, notes, tables that are
folded, and the config. What a run wrote is escaped.
"""

import base64
import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from attention_jax.reports.figures import Figure

PLAIN = (1e-4, 1e6)  # numbers between are written without an exponent
ROUNDING = 1e-12  # of a number, that of sums of floats
LEVEL = 0.05  # of p-values: none is shown as if it were on the other side


class Estimate(NamedTuple):
    """A mean with the ends of its interval, None or not finite where it has none; it shows as `show_interval` says."""

    mean: float
    low: float | None = None
    high: float | None = None

    def __str__(self) -> str:
        return show_interval(*self)


class Ratio(Estimate):
    """A value divided by another, with its interval; it shows as ×1.05 [1.02, 1.09]."""

    def __str__(self) -> str:
        return f"×{show_interval(*self, null=1)}"


class PValue(NamedTuple):
    """The p-value of a test; it shows as `show_p` says."""

    p: float

    def __str__(self) -> str:
        return show_p(self.p)


class Table(NamedTuple):
    """A table with a heading for each column; a cell is a text, a number, an Estimate or a PValue, or None."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    note: str = ""
    folded: bool = False  # shown when its title is clicked
    best: Collection[tuple[int, int]] = ()  # (row, column) of cells in bold


TEMPLATE = """{% macro pictures() %}{% if figures %}
<h2>Figures</h2>
{% for figure in figures %}
<figure><img{% if figure.is_wide %} class="wide"{% endif %} alt="{{ figure.caption }}" \
src="data:image/png;base64,{{ encode(figure.path) }}">
<figcaption>{{ figure.caption }}</figcaption></figure>
{% endfor %}
{% endif %}{% endmacro %}{% macro drawn(table) %}{% set kinds = kinds_of(table) %}
{% if table.note %}<p>{{ table.note }}</p>
{% endif %}<div class="scroll"><table>
<thead><tr>{% for name in table.columns %}<th tabindex="0"{% if kinds[loop.index0] %} class="number"{% endif %}>\
{{ name }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in table.rows %}{% set height = loop.index0 %}<tr>{% for cell in row %}{% set number = number_of(cell) %}
{%- set best = " best" if (height, loop.index0) in table.best else "" %}
{%- if number is not none %}<td class="number{{ best }}" data-value="{{ number }}">{{ parted(cell) }}</td>
{%- else %}<td>{{ show(cell) }}</td>{% endif %}{% endfor %}</tr>
{% endfor %}</tbody></table></div>
{% endmacro %}<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{{ policy }}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
  :root { color-scheme: light dark; --ink: #222; --faint: #5c5c5c; --line: #ddd; --back: #fff; --block: #f6f6f6; }
  @media (prefers-color-scheme: dark) {
    :root { --ink: #e4e4e4; --faint: #a8a8a8; --line: #444; --back: #1b1b1d; --block: #27272a; }
  }
  body { font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem;
    color: var(--ink); background: var(--back); }
  h1 { font-size: 1.5rem; } h2, summary { font-size: 1.15rem; font-weight: 600; margin: 2rem 0 .6rem; }
  summary { cursor: pointer; }
  dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.2rem; margin: 1rem 0; }
  dt { color: var(--faint); } dd { margin: 0; overflow-wrap: anywhere; }
  p, figcaption { max-width: 56rem; } .said { color: inherit; font-size: 1.05rem; margin: .5rem 0; }
  figure { margin: 1rem 0; overflow-x: auto; } figcaption, p { color: var(--faint); }
  img { max-width: 100%; background: #fff; border-radius: 4px; } img.wide { max-width: none; }
  .scroll { overflow-x: auto; }
  table { border-collapse: collapse; }
  th, td { padding: .2rem .8rem .2rem 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
  td { white-space: pre-line; }
  th { cursor: pointer; } th[aria-sort=ascending]::after { content: " ↑"; }
  th[aria-sort=descending]::after { content: " ↓"; }
  .number { text-align: right; font-variant-numeric: tabular-nums; padding-left: .8rem; } .best { font-weight: 700; }
  .interval { white-space: nowrap; font-size: .9em; font-weight: 400; color: var(--faint); }
  pre { background: var(--block); padding: .8rem; overflow-x: auto; }
  @media print {
    :root { --ink: #000; --faint: #333; --line: #bbb; --back: #fff; --block: #fff; }
    body { font-size: 10pt; max-width: none; margin: 0; } img, img.wide { max-width: 100%; max-height: 22cm; }
    figure, tr { break-inside: avoid; } h2 { break-after: avoid; } .scroll, figure { overflow: visible; }
  }
</style>
</head>
<body>
<h1>{{ title }}</h1>
{% for line in said %}<p class="said">{{ line }}</p>
{% endfor %}{% if facts %}<dl>
{% for name, text in facts.items() %}<dt>{{ name }}</dt><dd>{{ text }}</dd>
{% endfor %}</dl>
{% endif %}{% for table in open %}
<h2>{{ table.title }}</h2>
{{ drawn(table) }}{% if loop.index == first %}{{ pictures() }}{% endif %}
{% else %}{{ pictures() }}{% endfor %}
{% if notes %}<h2>Notes</h2>
{% for note in notes %}<p>{{ note }}</p>
{% endfor %}{% endif %}
{% for table in folded %}<details><summary>{{ table.title }}</summary>
{{ drawn(table) }}</details>
{% endfor %}
{% if config %}<details><summary>Config</summary>
<pre>{{ config }}</pre>
</details>
{% endif %}<script>{{ script }}</script>
</body>
</html>
"""
SCRIPT = """
// A click on a heading sorts its table by that column: numbers by value, what is empty last.
for (const head of document.querySelectorAll("th")) {
  const sort = () => {
    const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    for (const other of head.parentNode.children) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
    const body = head.closest("table").tBodies[0];
    const key = row => { const cell = row.cells[head.cellIndex]; return cell.dataset.value ?? cell.textContent; };
    const compare = (one, other) => {
      const [a, b] = [key(one), key(other)];
      if (a === "" || b === "") return (a === "") - (b === "");
      return sign * (isNaN(a) || isNaN(b) ? a.localeCompare(b) : a - b);
    };
    body.append(...[...body.rows].sort(compare));
  };
  head.addEventListener("click", sort);
  head.addEventListener("keydown", event => { if (event.key === "Enter") sort(); });
}
"""
# Nothing is loaded, and no script runs but the page's own, whatever a corpus or a name says.
POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
    "script-src 'sha256-{}'"
)


def render(
    title: str,
    tables: Sequence[Table],
    figures: Sequence[Figure],
    config: str,
    facts: Mapping[str, str] | None = None,
    *,
    said: Sequence[str] = (),
    first: int = 1,
    notes: Sequence[str] = (),
) -> str:
    """The page as text, pictures inside it.

    In this order: what is `said`, `facts` by name, as many open tables as `first` says, figures, the other open tables,
    `notes`, folded tables, config.
    """
    from jinja2 import Environment
    from markupsafe import Markup

    template = Environment(autoescape=True).from_string(TEMPLATE)
    opened = [table for table in tables if not table.folded]
    return template.render(
        title=title,
        said=said,
        facts=facts or {},
        open=opened,
        first=min(first, len(opened)),
        folded=[table for table in tables if table.folded],
        figures=figures,
        notes=notes,
        config=config,
        script=Markup(SCRIPT),
        policy=POLICY.format(base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode("ascii")),
        encode=_base64,
        show=show,
        parted=_parted,
        number_of=_number_of,
        kinds_of=_kinds_of,
    )


def show(cell: object) -> str:
    """A table's cell as text, nothing for None; a text stays what it is, so that a link is one."""
    if cell is None:
        return ""
    if isinstance(cell, str):
        return cell
    return show_number(cell) if isinstance(cell, (int, float)) else str(cell)


def show_number(value: float) -> str:
    """Four significant digits, integers whole, without an exponent below a million; True and False by name."""
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    rounded = float(f"{value:.4g}")
    return f"{rounded:,.0f}" if 1e4 <= abs(rounded) < PLAIN[1] else f"{value:.4g}"


def show_interval(mean: float | None, low: float | None = None, high: float | None = None, *, null: float = 0) -> str:
    """A mean and its interval with as many decimals as say something: 2.782 [2.639, 2.925].

    They show three significant digits of the interval's half-width, but at most four of the largest number, unless the
    half-width would not show at all; one of float64's rounding is none. An end that would be rounded to `null`, where
    nothing differs, is shown with its first digit beyond it: its side can be seen. The mean alone where there is no
    interval.
    """
    if mean is None or low is None or high is None or not all(map(math.isfinite, (mean, low, high))):
        return show(mean)
    largest, half = max(abs(mean), abs(low), abs(high)), (high - low) / 2
    if half > ROUNDING * largest and PLAIN[0] <= largest < PLAIN[1]:
        decimals = max(min(_decimals(largest, 4), _decimals(half, 3)), _decimals(half, 1), 0)
        shown = [f"{round(value, decimals) + 0.0:,.{decimals}f}" for value in (mean, low, high)]
        ends = [
            _beyond(end, null) if end != null and float(text.replace(",", "")) == null else text
            for end, text in zip((low, high), shown[1:], strict=True)
        ]
        shown = [shown[0], *ends]
    else:
        shown = [show_number(value) for value in (mean, low, high)]
    return f"{shown[0]} [{shown[1]}, {shown[2]}]"


def show_p(p: float) -> str:
    """A p-value with three decimals, or as many as tell on which side of .05 it is: .012, .0499, <.001, 1."""
    if p == 1:
        return "1"
    if p < 0.001:
        return "<.001"
    decimals = next(n for n in range(3, 17) if (round(p, n) < LEVEL) == (p < LEVEL))
    text = f"{p:.{decimals}f}".removeprefix("0")
    return ">.999" if text.startswith("1") else text


def _beyond(value: float, null: float) -> str:
    """A value with as many decimals as show the first digit of its distance to another."""
    return f"{value:.1g}" if null == 0 else f"{value:.{_decimals(abs(value - null), 1)}f}"


def _decimals(value: float, digits: int) -> int:
    """Decimals that show so many significant digits."""
    return digits - 1 - math.floor(math.log10(value))


def _number_of(cell: object) -> float | None:
    """What a cell is sorted by, where it is a number."""
    if isinstance(cell, (Estimate, PValue)):
        return cell[0]
    return cell if isinstance(cell, (int, float)) else None


def _parted(cell: object) -> str:
    """A number's cell, where an interval goes under its mean if there is no room beside it."""
    from markupsafe import Markup, escape

    mean, bracket, interval = show(cell).partition(" [")
    return escape(mean) + (Markup(' <span class="interval">[{}</span>').format(interval) if bracket else Markup(""))


def _kinds_of(table: Table) -> list[bool]:
    """Whether each column has numbers."""
    return [any(_number_of(row[column]) is not None for row in table.rows) for column in range(len(table.columns))]


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode("ascii")
