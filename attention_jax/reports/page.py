"""The report: one self-contained HTML page. Everything a run wrote is escaped."""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from attention_jax.reports.figures import Figure


class Table(NamedTuple):
    """A table with a heading for each column."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    note: str = ""


TEMPLATE = """{% macro pictures() %}
<h2>Figures</h2>
{% for figure in figures %}
<figure><img alt="{{ figure.caption }}" src="data:image/png;base64,{{ encode(figure.path) }}">
<figcaption>{{ figure.caption }}</figcaption></figure>
{% endfor %}
{% endmacro %}<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
  body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
  h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
  figure { margin: 1rem 0; } img { max-width: 100%; } figcaption { color: #555; }
  .scroll { overflow-x: auto; }
  table { border-collapse: collapse; } th, td { padding: .2rem .8rem; border-bottom: 1px solid #ddd; text-align: left; }
  th { cursor: pointer; white-space: nowrap; } th[aria-sort=ascending]::after { content: " ↑"; }
  th[aria-sort=descending]::after { content: " ↓"; }
  td.number { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
  pre { background: #f6f6f6; padding: .8rem; overflow-x: auto; }
</style>
</head>
<body>
<h1>{{ title }}</h1>
{% for table in tables %}
{% if loop.index == 2 %}{{ pictures() }}{% endif %}
<h2>{{ table.title }}</h2>
{% if table.note %}<p>{{ table.note }}</p>
{% endif %}<div class="scroll"><table>
<thead><tr>{% for name in table.columns %}<th tabindex="0">{{ name }}</th>{% endfor %}</tr></thead>
<tbody>
{% for row in table.rows %}<tr>{% for cell in row %}
{%- if cell is number %}<td class="number" data-value="{{ cell }}">{{ show(cell) }}</td>
{%- else %}<td>{{ cell }}</td>{% endif %}{% endfor %}</tr>
{% endfor %}</tbody></table></div>
{% endfor %}
{% if tables|length < 2 %}{{ pictures() }}{% endif %}
{% if config %}<h2>Config</h2>
<pre>{{ config }}</pre>
{% endif %}<script>
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
</script>
</body>
</html>
"""


def render(title: str, tables: Sequence[Table], figures: Sequence[Figure], config: str) -> str:
    """The page as text, pictures inside it, after the first table."""
    from jinja2 import Environment

    template = Environment(autoescape=True).from_string(TEMPLATE)
    return template.render(title=title, tables=tables, figures=figures, config=config, encode=_base64, show=show_number)


def show_number(value: float) -> str:
    """Four significant digits, integers whole; True and False by name."""
    if isinstance(value, bool):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode("ascii")
