"""Figures that were saved."""

import pytest


@pytest.fixture
def drawn(monkeypatch):
    """Every figure of matplotlib that was saved as PNG, by its name."""
    from matplotlib.figure import Figure

    kept = {}
    save = Figure.savefig

    def keep(self, path, **kwargs):
        kept[path.stem] = self
        save(self, path, **kwargs)

    monkeypatch.setattr(Figure, "savefig", keep)
    return kept
