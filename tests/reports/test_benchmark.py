"""The figure of how cost grows."""

import pytest
from matplotlib import pyplot

from attention_jax.reports import benchmark


@pytest.mark.parametrize(
    ("values", "labels"),
    [((3.92e6, 3.6e6, 3.52e6), ["3.92M"]), ((2.0, 4.0, 8.0), ["8", "2"]), ((5.0, 5.0, 5.0), ["5"])],
)
def test_labels_stand_apart(values, labels, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(benchmark, "save", lambda figure, *rest: drawn.append(figure))
    growth = {"what": "a step: bytes", "of": "devices", "sizes": (2, 4, 8), "values": values}
    benchmark.growths([{**growth, "expected": 0, "exponent": (0.0, -0.1, 0.1)}], tmp_path / "growth.png")
    axis = drawn[0].axes[0]
    assert [label.get_text() for label in axis.get_yticklabels()] == labels
    pyplot.close("all")
