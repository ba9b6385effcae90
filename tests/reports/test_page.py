"""The page: self-contained, everything escaped; figures that exist."""

import numpy as np

from attention_jax.reports.figures import Figure, curves, heatmaps
from attention_jax.reports.page import Table, render, show_number
from attention_jax.reports.translation import attention_figure, data_table

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
    assert "http" not in page.lower().replace("<!doctype html>", "")
    assert "data:image/png;base64," in page


def test_numbers_show_four_digits():
    assert [show_number(x) for x in (0.123456, 12345, 1e-9, 99.0)] == ["0.1235", "12,345", "1e-09", "99"]


def test_heatmaps_are_drawn_for_any_grid(tmp_path):
    for rows, cols in ((1, 1), (2, 3)):
        weights = np.random.default_rng(0).random((rows, cols, 4, 5))
        figure = heatmaps(weights, tmp_path / f"{rows}{cols}.png", "caption")
        assert figure.path.read_bytes().startswith(PNG)


def test_sentences_of_different_lengths_share_a_figure(tmp_path):
    weights = [np.eye(n, n + 1) for n in (2, 5, 3, 4)]
    words = [[f"w{i}" for i in range(9)][: n + 1] for n in (2, 5, 3, 4)]
    figure = attention_figure(weights, words, [w[:-1] for w in words], tmp_path / "a.png")
    assert figure.path.stat().st_size > 1000


def test_curves_take_marks(tmp_path):
    figure = curves({"a": ([1, 2], [3, 4])}, tmp_path / "c.png", "c", xlabel="x", ylabel="y", marks={"m": (1.0, 3.0)})
    assert figure.path.exists()


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
