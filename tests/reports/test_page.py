"""The page: self-contained, everything escaped, headline numbers first and what is long folded away."""

import math
import re

import numpy as np
import pytest

from attention_jax.reports.figures import Figure
from attention_jax.reports.page import Estimate, PValue, Ratio, Table, render, show, show_interval, show_number, show_p
from attention_jax.reports.run import estimate, facts_of, run_page
from attention_jax.reports.translation import data_table, result_tables

PNG = bytes.fromhex("89504e470d0a1a0a")


def test_the_page_needs_nothing_outside_itself_and_escapes_what_it_shows(tmp_path):
    (tmp_path / "f.png").write_bytes(PNG)
    nasty = "<script>alert(1)</script>"
    page = render(
        nasty,
        [Table(nasty, (nasty,), [(nasty, 1.5)])],
        [Figure(tmp_path / "f.png", f'"{nasty}')],
        f'{{"path": "{nasty}"}}',
    )
    assert page.count("<script") == 1  # its own, which sorts tables
    assert page.count("&lt;script&gt;") == 8
    assert "http:" not in page.lower()
    assert "https:" not in page.lower()
    assert "data:image/png;base64," in page


def test_numbers_show_four_digits():
    assert [show_number(x) for x in (0.123456, 12345, 1e-9, 99.0)] == ["0.1235", "12,345", "1e-09", "99"]
    assert [show_number(x) for x in (55987.3, 999999.0, 1.92e11)] == ["55,990", "1e+06", "1.92e+11"]


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ((2.782, 2.639, 2.925), "2.782 [2.639, 2.925]"),
        ((5.854, 1.73, 9.98), "5.85 [1.73, 9.98]"),
        ((1234.5, 1200.1, 1268.9), "1,234 [1,200, 1,269]"),
        ((0.0, -0.5, 0.5), "0.000 [-0.500, 0.500]"),
        ((-1e-5, -0.5, 0.5), "0.000 [-0.500, 0.500]"),  # never −0
        ((1.06812, 1.06811, 1.06813), "1.06812 [1.06811, 1.06813]"),  # as many as tell its ends apart
        ((1.92e11, 1.9e11, 1.94e11), "1.92e+11 [1.9e+11, 1.94e+11]"),
        ((0.0, 0.0, 0.0), "0 [0, 0]"),
        ((0.1 + 0.2, 0.3, 0.1 + 0.2), "0.3 [0.3, 0.3]"),
        ((3.14159, None, None), "3.142"),
        ((3.14159, math.nan, math.nan), "3.142"),
        ((None, None, None), ""),
    ],
)
def test_a_mean_and_its_interval_show_the_digits_that_say_something(values, shown):
    assert show_interval(*values) == show(Estimate(*values)) == shown


def sign(text):
    return np.sign(float(text.replace(",", "")))


def test_rounding_never_hides_on_which_side_of_zero_an_interval_is(random):
    for _ in range(2000):
        mean, half = random.normal() * 10.0 ** random.integers(-6, 7), 10.0 ** random.integers(-8, 7) * random.random()
        near = half * (1 + 10.0 ** -random.integers(1, 9)) * random.choice([-1, 1])  # ends beside 0, on either side
        for middle in (mean, near):
            low, high = middle - half, middle + half
            shown = show_interval(middle, low, high).partition(" [")[2].rstrip("]").split(", ")
            assert [sign(end) for end in shown] == [np.sign(low), np.sign(high)]


def test_rounding_never_hides_on_which_side_of_one_a_ratio_is(random):
    assert str(Ratio(0.95, 0.9003, 0.99996)) == "×0.9500 [0.9003, 0.99996]"
    assert str(Ratio(1.0049, 1.00003, 1.0098)) == "×1.005 [1.00003, 1.010]"
    for _ in range(1000):
        half = 10.0 ** random.integers(-3, 0) * random.random()
        mean = 1 + half * (1 + 10.0 ** -random.integers(1, 9)) * random.choice([-1, 1])
        ends = str(Ratio(mean, mean - half, mean + half)).partition(" [")[2].rstrip("]").split(", ")
        assert [np.sign(float(end) - 1) for end in ends] == [np.sign(mean - half - 1), np.sign(mean + half - 1)]


def test_a_mean_is_rounded_by_no_more_than_half_of_what_its_interval_leaves_open(random):
    for _ in range(500):
        mean, half = random.normal(), 10.0 ** random.integers(-4, 1) * random.uniform(0.1, 1)
        shown = float(show_interval(mean, mean - half, mean + half).partition(" ")[0])
        assert abs(shown - mean) <= 0.51 * half


def test_p_values_are_compact_and_none_is_shown_on_the_other_side_of_a_twentieth():
    shown = {0.0123: ".012", 0.00042: "<.001", 0.65: ".650", 1.0: "1", 0.9997: ">.999", 0.0499: ".0499", 0.05: ".050"}
    assert {p: show_p(p) for p in shown} == shown
    for p in (0.0495, 0.04999, 0.0499999, 0.05, 0.05000001, 0.0504):
        assert (float(show_p(p)) < 0.05) == (p < 0.05)
    page = render("t", [Table("a", ("p",), [(PValue(0.0123),), (None,)])], [], "")
    assert '<td class="number" data-value="0.0123">.012</td>' in page


def test_the_best_is_bold_and_a_link_is_a_link():
    from markupsafe import Markup

    table = Table("a", ("x", "y"), [(1.0, Markup('<a href="b/">b</a>')), (2.0, "<i>")], best={(1, 0)})
    page = render("t", [table], [], "")
    assert '<td class="number best" data-value="2.0">2</td>' in page
    assert '<td class="number" data-value="1.0">1</td>' in page
    assert '<td><a href="b/">b</a></td>' in page
    assert "<td>&lt;i&gt;</td>" in page


def test_a_page_opens_with_what_is_said_and_figures_come_after_the_first_tables(tmp_path):
    (tmp_path / "f.png").write_bytes(PNG)
    tables = [Table("folded", ("x",), [(1,)], folded=True), *(Table(name, ("x",), [(1,)]) for name in "abc")]
    page = render("t", tables, [Figure(tmp_path / "f.png", "fig")], "{}", said=["so it is"], first=2, notes=["a note"])
    order = ("so it is", "<h2>a", "<h2>b", "data:image/png", "<h2>c", "a note", "<summary>folded", "<summary>Config")
    indices = [page.index(text) for text in order]
    assert indices == sorted(indices)


def test_an_estimate_is_one_cell_which_sorts_by_its_mean():
    page = render("t", [Table("a", ("value",), [(Estimate(2.782, 2.639, 2.925),), ("",)])], [], "")
    assert '<td class="number" data-value="2.782">2.782 <span class="interval">[2.639, 2.925]</span></td>' in page


CONFIG = {"model.name": "transformer", "model.kwargs.width": 32, "data.source": "embedded", "seeds": (0, 1)}
RESULT = {
    "status": "finished",
    "seeds": [0, 1],
    "validation.bleu": 40.0,
    "validation.bleu_signature": "nrefs:1",
    "validation.bleu_by_length.3-4": 50.0,
    "validation.bleu_by_length.5": 30.0,
    "validation.perplexity_by_length.3-4": 2.0,
    "validation.perplexity_by_length.5": 4.0,
    "test.bleu": 39.0,
    "ci95.validation.bleu": [38.0, 42.0],
    "ci95.validation.perplexity_by_length.5": [3.0, 5.0],
    "members": [{}, {}],
    "cost.parameters": 61097,
    "cost.flops": 1.92e11,
    "versions.jax": "0.10.2",
    "code.changed": False,
}


def test_a_run_s_page_opens_with_what_was_done_headline_numbers_and_figures(tmp_path):
    (tmp_path / "f.png").write_bytes(PNG)
    tables = [*result_tables(RESULT), Table("Translations", ("source",), [("a",)])]
    page = run_page("nmt: mine", CONFIG, RESULT, tables, [Figure(tmp_path / "f.png", "Learning")], "{}")
    order = [
        *("nmt: mine", "61,097 parameters", "40.00 [38.00, 42.00]", "data:image/png", "4.00 [3.00, 5.00]"),
        *("<h2>Translations", "<details><summary>Every number", "validation.bleu_by_length.3-4", "</details>"),
        *("<details><summary>Signatures, versions, code", "nrefs:1", "</details>"),
        *("<details><summary>Config", "</details>"),
    ]
    indices, shown = [], re.sub("</?span[^>]*>", "", page)
    for text in order:
        indices.append(shown.index(text, indices[-1] if indices else 0))
    assert indices == sorted(indices)
    head = page[page.index("<body>") : page.index("<details>")]
    assert "nrefs" not in head
    assert "versions.jax" not in head
    assert "<details open" not in page


def test_headline_numbers_and_those_by_length_are_by_split_with_their_intervals():
    headline, by_length = result_tables(RESULT)
    assert headline.columns == ("", "validation", "test")
    assert headline.rows == [("BLEU", Estimate(40.0, 38.0, 42.0), Estimate(39.0))]
    assert by_length.columns == ("", "words", "BLEU", "perplexity a token")
    assert by_length.rows == [
        ("validation", "3-4", Estimate(50.0), Estimate(2.0)),
        ("validation", "5", Estimate(30.0), Estimate(4.0, 3.0, 5.0)),
    ]
    assert "seeds 0, 1" in headline.title


def test_a_number_that_was_lost_is_an_empty_cell():
    assert estimate({"test.bleu": None}, "test.bleu") == ""
    assert estimate({}, "test.bleu") == ""


def test_what_is_not_known_of_a_run_is_not_told():
    assert facts_of({"seeds": (3,)}, {}) == {"training": "seed 3"}
    facts = facts_of(CONFIG, RESULT)
    assert facts["model"] == "transformer, width 32, 61,097 parameters"
    assert facts["training"] == "seeds 0, 1"
    asked = {"model.kwargs.score": "cosine", "model.kwargs.normalize": "sigmoid"}
    assert facts_of(CONFIG | asked, {})["model"] == "transformer, score cosine, normalize sigmoid, width 32"
    assert facts["cost"] == "1.92e+11 FLOPs a seed"


COUNTED = {
    "pairs": {"train": 80, "validation": 9, "test": 8},
    "too_long": {"pairs": 6, "what": "skip"},
    "too_long_by_split": {"train": 3, "validation": 1, "test": 2},
    "bad_lines": 9,
    "bad_lines_by_file": {"validation": 5, "train": 4},
    "left_out": 7,
}


def test_the_data_of_a_run_are_told_by_split_with_what_each_lacks():
    table = data_table(COUNTED)
    assert table.rows == [
        ("train", 80, 3, 4, 7),
        ("validation", 9, 1, 5, ""),
        ("test", 8, 2, "", ""),
        ("all", 97, 6, 9, 7),
    ]
    assert table.note == (
        "validation lacks 1 pairs that are too long and 5 bad lines of its file: "
        "its figures are of fewer sentences than its file has. "
        "test lacks 2 pairs that are too long: its figures are of fewer sentences than were drawn. "
        "test was drawn without 4 bad lines of the training file."
    )


def test_sentences_that_are_cut_are_not_lacking():
    cut = {"too_long": {"pairs": 6, "what": "truncate"}, "bad_lines_by_file": {"validation": 0, "train": 0}}
    table = data_table({**COUNTED, **cut})
    assert table.note == ""
    assert table.columns[2].startswith("truncated")


def test_the_data_of_an_older_import_which_counted_less_are_told_as_far_as_they_are_known():
    older = {name: COUNTED[name] for name in ("pairs", "too_long", "bad_lines")}
    assert data_table(older).rows[1:] == [
        ("validation", 9, "", "", ""),
        ("test", 8, "", "", ""),
        ("all", 97, 6, 9, ""),
    ]
