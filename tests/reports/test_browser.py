"""The page in a real browser, where there is one: a click sorts, the console stays silent, nothing scrolls sideways."""

import pytest
from browser import dom_of, needs_browser, seen_on

from attention_jax.reports.page import Estimate, Table, render

CLICKS = """
  const shown = () => [...document.querySelectorAll("tbody tr")].map(row => row.cells[0].textContent).join("");
  const orders = [shown()];
  for (const column of [1, 1, 2, 0]) { document.querySelectorAll("th")[column].click(); orders.push(shown()); }
  return orders;
"""
WIDTHS = """
  const boxes = [document.documentElement, ...document.querySelectorAll(".scroll")];
  return [boxes.length, boxes.filter(box => box.scrollWidth > box.clientWidth).length];
"""


@needs_browser
@pytest.mark.parametrize(("columns", "wide"), [(5, 0), (8, 0), (30, 1)])
def test_a_table_of_many_estimates_fits_a_laptop_whose_intervals_go_under_their_means(tmp_path, columns, wide):
    row = [Estimate(index + 0.2345, index + 0.1234, index + 0.3456) for index in range(columns)]
    table = Table("t", ("setting", *map(str, range(columns))), [("randomized_sinusoidal", *row)] * 2)
    page = render("Wide", [table], [], "")
    assert seen_on(page, tmp_path, WIDTHS, "--window-size=1280,800") == [2, wide]


@needs_browser
def test_a_click_on_a_heading_sorts_and_another_sorts_the_other_way(tmp_path):
    rows = [("a", 10.0, "x"), ("b", 9.5, ""), ("c", 1e-7, "y"), ("d", "", "w"), ("e", 100.0, "z")]
    page = render("Sorting", [Table("table", ("name", "value", "word"), rows)], [], "")
    assert seen_on(page, tmp_path, CLICKS) == ["abcde", "cbaed", "eabcd", "daceb", "abcde"]


STRANGERS = """
<script>document.title = "ran"</script><img src="x" onerror="document.title='ran'"><a href="javascript:1">a</a>
"""


@needs_browser
def test_no_script_runs_but_the_pages_own_even_where_it_was_not_escaped(tmp_path):
    page = render("Mine", [Table("t", ("name",), [("a",), ("b",)])], [], "")
    dom = dom_of(page.replace("</h1>", f"</h1>{STRANGERS}"), tmp_path)
    assert "<title>Mine</title>" in dom
    sorting = page.replace("head.addEventListener", "document.title = 'changed'; head.addEventListener")
    assert "<title>Mine</title>" in dom_of(sorting, tmp_path)  # its digest is another
