"""Figures: one colour a name, nothing that is cut off or lies on another, bands that stay where a metric can be."""

import itertools

import numpy as np
import pytest

from attention_jax.evaluation.metrics import metric
from attention_jax.reports.attention import KINDS, attention_figure, cut_loops, head_figures, taken
from attention_jax.reports.extrapolation import length_curves
from attention_jax.reports.figures import PALETTE, colours, curves, legend, line_style, new_figure
from attention_jax.reports.learning import learning_figure, learning_line
from attention_jax.reports.maps import WordMap, heatmaps, word_maps

PNG = bytes.fromhex("89504e470d0a1a0a")
LETTERS = "abcdefghijklmnop"


@pytest.fixture
def drawn(monkeypatch):
    """Every figure of matplotlib that was saved."""
    from matplotlib.figure import Figure

    kept = []
    save = Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *args, **kwargs: (kept.append(self), save(self, *args, **kwargs))
    )
    return kept


def panels_of(figure):
    return [axis for axis in figure.axes if axis.images and axis.get_label() != "<colorbar>"]


def boxes(figure, texts):
    return [text.get_window_extent(figure.canvas.get_renderer()) for text in texts if text.get_text()]


def is_apart(one, other):
    return not one.padded(-0.5).overlaps(other.padded(-0.5))


def test_a_figure_is_a_png_and_beside_it_a_pdf(tmp_path):
    figure = curves({"a": ([1, 2], [3, 4])}, tmp_path / "c.png", "c", xlabel="x", ylabel="y", marks={"m": (1.0, 3.0)})
    assert figure.path.read_bytes().startswith(PNG)
    assert (tmp_path / "c.pdf").read_bytes().startswith(b"%PDF")


def test_a_name_has_the_same_colour_wherever_it_is_drawn_and_no_two_names_look_alike():
    names = [f"setting {index}" for index in range(25)]
    palette = colours(names)
    assert colours([*names, *names]) == palette
    assert len({tuple(line_style(palette, name).values()) for name in names}) == len(names)
    assert len(set(PALETTE)) == len(PALETTE)


def test_a_series_that_a_panel_lacks_takes_no_colour_from_another(tmp_path, drawn):
    line = ([1, 2], [1.0, 2.0], [1.0, 2.0], [1.0, 2.0])
    panels = {"copy": {"a": line, "b": line}, "sort": {"b": line}}
    length_curves(panels, None, tmp_path / "l.png", palette=colours("abc"))
    first, second = ({one.get_label(): one.get_color() for one in axis.lines} for axis in drawn[0].axes)
    assert first["b"] == second["b"] == PALETTE[1]
    assert [text.get_text() for text in drawn[0].legends[0].get_texts()] == ["a", "b"]


@pytest.mark.parametrize("count", [1, 4, 9, 30])
def test_a_legend_is_no_wider_than_its_figure(tmp_path, count):
    figure, axes = new_figure(1, 1, 6.4, 5)
    for index in range(count):
        axes[0, 0].plot([0, 1], label=f"a long name of setting {index}")
    legend(figure, axes.flat)
    figure.canvas.draw()
    box = figure.legends[0].get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= figure.bbox.x1


def test_heatmaps_are_drawn_for_any_grid(tmp_path):
    for rows, cols in ((1, 1), (2, 3)):
        weights = np.random.default_rng(0).random((rows, cols, 4, 5))
        assert heatmaps(weights, tmp_path / f"{rows}{cols}.png", "caption").path.read_bytes().startswith(PNG)


@pytest.mark.parametrize("lengths", [[(2, 3), (5, 6), (3, 9), (4, 4)], [(40, 12), (3, 50)], [(90, 90)]])
def test_maps_between_words_have_square_cells_of_one_size_and_labels_that_do_not_overlap(tmp_path, drawn, lengths):
    words = [f"word{index}" for index in range(90)]
    maps = [WordMap(np.eye(q, k), words[:q], words[:k], f"setting {q}, of {k} words") for q, k in lengths]
    word_maps(maps, tmp_path / "m.png", "c", columns=3, xlabel="source", ylabel="translation")
    figure = drawn[0]
    figure.canvas.draw()
    panels = panels_of(figure)
    assert [panel.images[0].get_array().shape for panel in panels] == lengths
    sides = [
        side / count
        for panel, shape in zip(panels, lengths, strict=True)
        for side, count in zip((panel.bbox.height, panel.bbox.width), shape, strict=True)
    ]
    np.testing.assert_allclose(sides, sides[0], rtol=1e-3)
    for panel in panels:
        rows = boxes(figure, panel.get_yticklabels())
        assert all(is_apart(*pair) for pair in itertools.pairwise(rows))
        columns = [label.get_position()[0] for label in panel.get_xticklabels()]
        assert all(np.diff(columns) * sides[0] >= 8 * figure.dpi / 72)  # points of a letter
        for box in (*rows, *boxes(figure, [*panel.get_xticklabels(), panel.title, panel.xaxis.label])):
            assert figure.bbox.x0 <= box.x0
            assert box.x1 <= figure.bbox.x1
            assert figure.bbox.y0 <= box.y0
            assert box.y1 <= figure.bbox.y1
            assert all(is_apart(box, other.bbox) for other in panels if other is not panel)


def test_every_layer_and_head_has_a_panel_of_each_kind(tmp_path, drawn):
    source, target = ["the", "cat", "<eos>"], ["le", "chat", "dort", "<eos>"]
    shapes = {"encoder": (3, 3), "decoder": (4, 4), "cross": (4, 3)}
    weights = {kind: np.random.default_rng(0).random((2, 5, *shape)) for kind, shape in shapes.items()}
    figures = head_figures(weights, source, target, tmp_path, "Sentence 1")
    assert [figure.path.stem for figure in figures] == [*KINDS]
    for figure, (kind, shape) in zip(drawn[::2], shapes.items(), strict=True):
        panels = panels_of(figure)
        assert [panel.get_title() for panel in panels] == [
            f"layer {layer}, head {head}" for layer in (1, 2) for head in (1, 2, 3, 4, 5)
        ]
        for panel, maps in zip(panels, weights[kind].reshape(10, *shape), strict=True):
            np.testing.assert_array_equal(panel.images[0].get_array(), maps)
    read = [label.get_text() for label in panels_of(drawn[2])[-1].get_xticklabels()]
    assert read == ["<bos>", "le", "chat", "dort"]  # a word is written from those before it


def test_a_model_with_cross_attention_alone_has_one_figure(tmp_path):
    weights = {"cross": np.ones((1, 2, 2, 3))}
    assert len(head_figures(weights, ["a", "b", "c"], ["x", "y"], tmp_path, "Sentence 1")) == 1
    assert head_figures(weights, ["a", "b", "c"], [], tmp_path, "Sentence 2") == []


def test_a_loop_is_cut_to_two_turns_with_a_mark_of_how_many_more_there_were():
    assert cut_loops(["a", "b", "c"]) == ([0, 1, 2], ["a", "b", "c"])
    assert cut_loops(["je", *["ne"] * 3, "dors"])[1] == ["je", *["ne"] * 3, "dors"]  # three times is no loop
    positions, labels = cut_loops(["je", *["ne"] * 9, "dors"])
    assert positions == [0, 1, 2, None, 10]
    assert labels == ["je", "ne", "ne", "… 7 more", "dors"]
    positions, labels = cut_loops(list("xabcabcabcabcab"))
    assert labels == ["x", *"abcabc", "… 2 more", "a", "b"]
    assert positions == [*range(7), None, 13, 14]


@pytest.mark.parametrize("seed", range(20))
def test_what_is_cut_can_be_told_again_and_the_rest_is_in_order(seed):
    words = list(np.random.default_rng(seed).choice(list("ab"), 40))
    positions, labels = cut_loops(words)
    kept = [one for one in positions if one is not None]
    assert kept == sorted(set(kept))
    assert [label for position, label in zip(positions, labels, strict=True) if position is not None] == [
        words[p] for p in kept
    ]
    assert len(positions) <= len(words)


def test_rows_of_a_cut_loop_are_blank_and_the_others_their_own():
    matrix = np.arange(12.0).reshape(4, 3)
    found = taken(matrix, [0, None, 3], range(3))
    np.testing.assert_array_equal(found[[0, 2]], matrix[[0, 3]])
    assert np.isnan(found[1]).all()


def test_a_repeated_translation_makes_no_taller_figure(tmp_path, drawn):
    attention_figure([np.ones((60, 3))], [["a", "b", "c"]], [["ne"] * 60], tmp_path / "a.png")
    assert panels_of(drawn[0])[0].images[0].get_array().shape == (3, 3)


def logged(name, *seeds):
    return [
        {"step": step, "seed": n, name: value} for n, values in enumerate(seeds) for step, value in enumerate(values)
    ]


@pytest.mark.parametrize(
    "name", ["validation.bleu", "validation.loss", "test.token_accuracy", "validation.perplexity", "kendall_tau"]
)
def test_no_band_leaves_what_its_metric_can_be(name):
    row = metric(name)
    low, high = max(row.low, -5), min(row.high, 5)
    values = [[low, low + 0.1, high], [high, low, high], [low, low, low]]
    steps, means, lows, highs = learning_line(logged(name, *values), name)
    assert steps == [0, 1, 2]
    np.testing.assert_allclose(means, np.exp(np.mean(np.log(values), 0)) if row.is_log else np.mean(values, 0))
    assert all(row.low <= one <= mean for one, mean in zip(lows, means, strict=True))
    assert all(mean <= one <= row.high for one, mean in zip(highs, means, strict=True))


def test_a_seed_that_diverged_leaves_the_others_their_curve():
    lines = [*logged("train.loss", [3.0, 2.0]), {"step": 1, "seed": 1, "train.loss": None}]
    assert learning_line(lines, "train.loss") == ([0, 1], [3.0, 2.0], [3.0, 2.0], [3.0, 2.0])


def test_learning_is_drawn_with_a_panel_a_unit(tmp_path, drawn):
    lines = logged("validation.perplexity", [9.0, 3.0], [8.0, 4.0]) + logged("train.loss", [2.0, 1.0])
    panels = {"nats": {"train": "train.loss"}, "perplexity": {"validation": "validation.perplexity"}}
    learning_figure(lines, panels, tmp_path / "l.png", "c")
    assert [axis.get_ylabel() for axis in drawn[0].axes] == ["nats", "perplexity"]
    assert [axis.get_yscale() for axis in drawn[0].axes] == ["linear", "log"]
