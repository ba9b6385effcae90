"""Tables as files: Markdown to read in a terminal, LaTeX for a paper, CSV with every digit."""

import csv
import io
import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from attention_jax.files import write_whole
from attention_jax.reports.page import Estimate, PValue, Table, show
from attention_jax.terminal import printable

WIDTH = 120  # characters of a line
ESCAPED = {
    **{letter: f"\\{letter}" for letter in "_%&#${}"},
    **{"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}"},
    **{"<": r"$<$", ">": r"$>$", "→": r"$\to$", "…": r"\ldots{}", "∞": r"$\infty$", "×": r"$\times$"},
}
MINUS = "\ue000"  # of a number, until the text around it is escaped
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "|", "\\")
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
LATEX = r"""% \usepackage{{booktabs}}
\begin{{table}}
\centering
\caption{{{caption}}}
\begin{{tabular}}{{{columns}}}
\toprule
{head}
\midrule
{body}
\bottomrule
\end{{tabular}}
\end{{table}}
"""


def write_tables(
    main: Table, others: Sequence[Table], folder: Path, said: Sequence[str] = (), notes: Sequence[str] = ()
) -> None:
    """The main table as table.csv and table.tex, the others as tables/TITLE.csv and .tex.

    table.md has what is said, the main table, the others that are not folded, and the notes.
    """
    (folder / "tables").mkdir(exist_ok=True)
    for path in (folder / "tables").iterdir():  # of an answer before
        if path.suffix in (".csv", ".tex"):
            path.unlink()
    for table in (main, *others):
        path = folder / "table" if table is main else folder / "tables" / _file_name(table.title)
        write_whole(path.with_name(f"{path.name}.tex"), as_latex(table, notes if table is main else ()))
        write_csv(path.with_name(f"{path.name}.csv"), as_csv(table))
    shown = [table for table in (main, *others) if not table.folded]
    parts = [*map(_filled, said), *map(as_markdown, shown), *map(_filled, notes)]
    write_whole(folder / "table.md", "\n".join(parts))


def write_csv(path: Path, rows: Iterable[Sequence[Any]]) -> None:
    """Write rows as CSV. A text that a spreadsheet would run as a formula gets a ' before it; a number stays one."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([_harmless(cell) for cell in row] for row in rows)
    write_whole(path, file.getvalue())


def _harmless(cell: Any) -> Any:
    if not isinstance(cell, str):
        return cell
    text = printable(cell)
    return f"'{text}" if text.startswith(FORMULA) and not NUMBER.fullmatch(text) else text


def as_csv(table: Table) -> list[list[Any]]:
    """The table's columns and rows with every digit: of an Estimate its mean, NAME, and its ends, NAME low and high."""
    is_wide = [any(isinstance(row[column], Estimate) for row in table.rows) for column in range(len(table.columns))]
    parts = [("", " low", " high") if wide else ("",) for wide in is_wide]
    columns = [f"{name}{part}" for name, own in zip(table.columns, parts, strict=True) for part in own]
    rows = [
        [value for cell, own in zip(row, parts, strict=True) for value in _values(cell, len(own))] for row in table.rows
    ]
    return [columns, *rows]


def as_markdown(table: Table) -> str:
    """The table with its title and note, the best in bold.

    What is wider than a terminal goes on in a second table, which has the first columns again: those before the first
    Estimate.
    """
    rows = list(enumerate(table.rows))
    columns = [
        [_cell(name), *(_bold(_cell(row[column]), "**{}**", (n, column) in table.best) for n, row in rows)]
        for column, name in enumerate(table.columns)
    ]
    first = next((n for row in table.rows for n, cell in enumerate(row) if isinstance(cell, Estimate)), len(columns))
    blocks: list[list[list[str]]] = [columns[:first]]
    for column in columns[first:]:
        if _width([*blocks[-1], column]) > WIDTH and len(blocks[-1]) > first:
            blocks.append(columns[:first])
        blocks[-1] = [*blocks[-1], column]
    drawn = "\n".join(map(_drawn, blocks))
    return f"{_filled(table.title)}\n{drawn}" + (f"\n{_filled(table.note)}" if table.note else "")


def _cell(cell: object) -> str:
    """A cell of Markdown: one line, in which a | is no border."""
    return _on_one_line(show(cell)).replace("|", "\\|")


def _drawn(columns: Sequence[Sequence[str]]) -> str:
    """Columns of texts, each with its heading first, as a table of Markdown."""
    widths = [max(map(len, column)) for column in columns]
    head, *rows = [
        "| " + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) + " |"
        for line in zip(*columns, strict=True)
    ]
    ruled = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join((head, ruled, *rows)) + "\n"


def _width(columns: Sequence[Sequence[str]]) -> int:
    return sum(max(map(len, column)) + 3 for column in columns) + 1


def as_latex(table: Table, notes: Sequence[str] = ()) -> str:
    """A table of booktabs with the best in bold and small intervals; its caption is the title, the note, and notes."""
    caption = " ".join((f"{table.title}.", *([table.note] if table.note else ()), *notes))
    kinds = [
        any(isinstance(row[column], (Estimate, PValue, int, float)) for row in table.rows)
        for column in range(len(table.columns))
    ]
    rows = [
        " & ".join(_latex_cell(cell, (row, column) in table.best) for column, cell in enumerate(cells)) + r" \\"
        for row, cells in enumerate(table.rows)
    ]
    return LATEX.format(
        caption=escape(caption),
        columns="".join("r" if is_number else "l" for is_number in kinds),
        head=" & ".join(map(escape, table.columns)) + r" \\",
        body="\n".join(rows),
    )


def escape(text: str) -> str:
    """A text as LaTeX says it, on one line."""
    return "".join(ESCAPED.get(letter, letter) for letter in _on_one_line(text))


def _on_one_line(text: str) -> str:
    return printable(" ".join(text.split("\n")))


def _latex_cell(cell: object, is_best: bool) -> str:
    text = show(cell)
    if not isinstance(cell, (Estimate, PValue, int, float)):
        return _bold(escape(text), r"\textbf{{{}}}", is_best)
    mean, bracket, interval = re.sub(r"(?<!e)-(?=\d)", MINUS, text).partition(" [")
    shown = _bold(escape(mean), r"\textbf{{{}}}", is_best) + (rf" {{\scriptsize [{interval}}}" if bracket else "")
    return shown.replace(MINUS, "$-$")


def _values(cell: object, count: int) -> list[Any]:
    """The numbers of a cell in so many columns; nothing for a text where the others have estimates."""
    if isinstance(cell, Estimate):
        return ["" if end is None else end for end in cell]
    if count > 1:
        return [""] * count
    return [cell.p if isinstance(cell, PValue) else "" if cell is None else cell]


def _bold(text: str, form: str, is_best: bool) -> str:
    return form.format(text) if is_best and text else text


def _filled(text: str) -> str:
    return textwrap.fill(text, WIDTH) + "\n"


def _file_name(title: str) -> str:
    return re.sub(r"\W+", "_", title, flags=re.ASCII).strip("_")
