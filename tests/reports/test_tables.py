"""Tables as files: what is read in a terminal, what goes into a paper, and every digit."""

import csv
import re
import shutil
import subprocess

import pytest

from attention_jax.reports.page import Estimate, PValue, Ratio, Table
from attention_jax.reports.tables import WIDTH, as_csv, as_latex, as_markdown, escape, write_tables

THIRD = 1 / 3
TABLE = Table(
    "learning_rate & loss",
    ("learning_rate", "validation.loss", "difference", "p, Holm", "which"),
    [
        (0.001, Estimate(2.782, 2.639, 2.925), Estimate(-THIRD, -0.7, 0.1), PValue(0.00012), "100% of {it}"),
        (0.01, Estimate(2.782, 2.639, 2.925), Estimate(-0.012, -0.02, -0.004), PValue(THIRD), "a_b"),
        (0.1, Estimate(THIRD), None, None, None),
    ],
    note="A note.",
    best={(0, 1), (1, 1)},
)


def test_numbers_have_every_digit_and_columns_of_their_own_in_csv(tmp_path):
    write_tables(TABLE, [], tmp_path)
    with open(tmp_path / "table.csv", encoding="utf-8") as file:
        first, second, third = csv.DictReader(file)
    assert [float(first[f"difference{part}"]) for part in ("", " low", " high")] == [-THIRD, -0.7, 0.1]
    assert float(second["p, Holm"]) == THIRD
    assert (float(third["validation.loss"]), third["validation.loss low"], third["difference"]) == (THIRD, "", "")
    assert [len(row) for row in as_csv(TABLE)] == [9] * 4


def test_latex_has_the_best_in_bold_ties_and_all_with_small_intervals_and_its_caption():
    text = as_latex(TABLE, ["Intervals are over 3 seeds."])
    assert text.count(r"\textbf{2.782} {\scriptsize [2.639, 2.925]}") == 2
    assert text.count(r"\textbf") == 2
    assert r"\caption{learning\_rate \& loss. A note. Intervals are over 3 seeds.}" in text
    assert r"$-$0.01200 {\scriptsize [$-$0.02000, $-$0.00400]}" in text
    assert r"& $<$.001 & 100\% of \{it\} \\" in text
    assert r"\begin{tabular}{rrrrl}" in text
    body = text.partition(r"\midrule")[2].partition(r"\bottomrule")[0].strip().splitlines()
    assert [len(re.findall(r"(?<!\\)&", line)) for line in body] == [4] * 3
    assert all(line.endswith(r"\\") for line in body)


def test_a_ratio_is_told_from_a_difference_in_every_kind_of_table():
    table = Table("t", ("setting", "ratio"), [("a", Ratio(1.052, 1.021, 1.09))])
    assert "| a       | ×1.052 [1.021, 1.090] |" in as_markdown(table)
    assert r"a & $\times$1.052 {\scriptsize [1.021, 1.090]} \\" in as_latex(table)
    assert as_csv(table) == [["setting", "ratio", "ratio low", "ratio high"], ["a", 1.052, 1.021, 1.09]]


def test_every_special_letter_is_escaped_once():
    assert escape(r"a_b%c&d#e$f{g}\h") == r"a\_b\%c\&d\#e\$f\{g\}\textbackslash{}h"
    assert escape("x^2~<>") == r"x\textasciicircum{}2\textasciitilde{}$<$$>$"


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex here: apt-get install texlive-latex-base")
def test_latex_compiles(tmp_path):
    whole = r"\documentclass{article}\usepackage{booktabs}\begin{document}%s\end{document}"
    names = Table(r"_%&#${}\^~<>", ("a_b", "→"), [(r"\x^2", "…"), ("∞", None)])
    (tmp_path / "t.tex").write_text(whole % (as_latex(TABLE) + as_latex(names)), encoding="utf-8")
    command = ["pdflatex", "-halt-on-error", "-interaction=batchmode", "-draftmode", "t.tex"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=60, capture_output=True)


def test_a_table_wider_than_a_terminal_goes_on_below_with_its_first_columns_again(tmp_path):
    tasks = [f"task {number}" for number in range(9)]
    row = [Estimate(number + 0.25, number + 0.125, number + 0.5) for number in range(9)]
    text = as_markdown(Table("wide", ("setting", *tasks), [("alibi", *row)], best={(0, 9)}))
    assert max(map(len, text.splitlines())) <= WIDTH
    heads = [line for line in text.splitlines() if line.startswith("| setting")]
    assert len(heads) > 1
    assert re.findall(r"task \d", text) == tasks
    assert text.count("| alibi") == len(heads)
    assert "**8.250 [8.125, 8.500]**" in text


def test_what_is_folded_is_in_files_of_its_own_and_not_in_what_a_terminal_shows(tmp_path):
    folded, other = (Table(name, ("x",), [(1.5,)], folded=name == "all p-values") for name in ("all p-values", "costs"))
    write_tables(TABLE, [folded, other], tmp_path, ["It is so."], ["A last word."])
    text = (tmp_path / "table.md").read_text()
    indices = [text.index(part) for part in ("It is so.", "learning_rate & loss", "A note.", "costs", "A last word.")]
    assert indices == sorted(indices)
    assert "all p-values" not in text
    assert (tmp_path / "tables" / "all_p_values.csv").read_text() == "x\n1.5\n"
    assert {path.name for path in (tmp_path / "tables").iterdir()} == {
        "all_p_values.csv", "all_p_values.tex", "costs.csv", "costs.tex",
    }  # fmt: skip
