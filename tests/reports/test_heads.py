"""The figure of heads: means over tokens alone, and labels that can be read whatever the model's size."""

import itertools

import numpy as np
import pytest

from attention_jax.reports.heads import POINTS, by_head, by_part, by_position, heads_figure


def found(layers=2, heads=3, rows=2, length=10, top=2):
    """Statistics of random numbers; the second row is packed, and ends in padding of which nothing may be read."""
    drawn = np.random.default_rng(0)
    shape = (rows, layers, heads, length)
    arrays = {name: drawn.random(shape) for name in ("entropy", "distance", "first")}
    positions, is_token = np.tile(np.arange(length), (rows, 1)), np.ones((rows, length), bool)
    positions[1, length // 2 :] -= length // 2
    is_token[1, -1] = False
    arrays["entropy"][1, ..., -1] = 1e9
    more = {"top_weights": drawn.random((*shape, top)) / max(top, 1), "parts": drawn.dirichlet(np.ones(4), shape)}
    return arrays | more | {"positions": positions, "is_token": is_token}


def test_means_by_head_are_over_all_tokens():
    statistics = found()
    kept = [
        statistics["entropy"][row, :, :, time] for row, time in zip(*np.nonzero(statistics["is_token"]), strict=True)
    ]
    np.testing.assert_allclose(by_head(statistics, "entropy"), np.mean(kept, axis=0))


def test_means_by_position_are_over_the_tokens_and_heads_of_each():
    statistics = found()
    positions, means = by_position(statistics, "entropy")
    np.testing.assert_array_equal(positions, np.arange(10))
    for position in range(10):
        tokens = np.nonzero((statistics["positions"] == position) & statistics["is_token"])
        kept = [statistics["entropy"][row, :, :, time] for row, time in zip(*tokens, strict=True)]
        np.testing.assert_allclose(means[:, position], np.mean(kept, axis=(0, 2)))


def test_weights_by_part_are_means_over_the_tokens_and_heads_of_each_part_of_the_rows():
    statistics = found()
    means = by_part(statistics)
    for part, times in enumerate(np.array_split(np.arange(10), [3, 5, 8])):
        kept = [
            statistics["parts"][row, :, :, time] for row in range(2) for time in times if (row, time) != (1, 9)
        ]  # all but the padding
        np.testing.assert_allclose(means[:, part], np.mean(kept, axis=(0, 2)))
    np.testing.assert_allclose(means.sum(axis=-1), 1)


def test_long_texts_have_as_many_points_as_a_line_can_show():
    positions, means = by_position(found(length=5000), "distance")
    assert positions.shape == (POINTS,)
    assert means.shape == (2, POINTS)
    assert np.all(np.diff(positions) > 0)


@pytest.mark.parametrize(("layers", "heads", "top"), [(1, 1, 0), (4, 4, 4), (24, 16, 4)])
def test_every_size_of_model_has_labels_that_do_not_overlap(tmp_path, monkeypatch, layers, heads, top):
    from matplotlib.figure import Figure

    kept, save = [], Figure.savefig
    monkeypatch.setattr(
        Figure, "savefig", lambda self, *args, **kwargs: (kept.append(self), save(self, *args, **kwargs))
    )
    figure = heads_figure(found(layers, heads, top=top), tmp_path / "heads.png", seed=3)
    assert figure.path.exists()
    assert "19 tokens of held-out text, seed 3" in figure.caption
    assert ("weight on the 4 largest" in [axis.get_ylabel() for axis in kept[0].axes]) == bool(top)
    for axis in kept[0].axes:
        for side in (axis.xaxis, axis.yaxis):
            boxes = [label.get_window_extent() for label in side.get_ticklabels() if label.get_text()]
            assert not any(one.padded(-0.5).overlaps(other.padded(-0.5)) for one, other in itertools.pairwise(boxes))
