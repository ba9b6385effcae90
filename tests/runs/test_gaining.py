"""A finished run that gains seeds trains these alone, and that is what is watched for a NaN."""

import pytest
from sweeper import Sweeper, train

from attention_jax.launcher import modes


@pytest.fixture
def start(tmp_path):
    sweeper = Sweeper(tmp_path)

    def start_with(*seeds, debug_nans=False):
        config = sweeper.config(seeds=seeds, train__steps=6, train__evaluate_every=6)
        train(config, tmp_path / "run", debug_nans=debug_nans)

    return start_with


def test_a_nan_of_a_seed_that_joins_is_named_by_that_seed(start, monkeypatch):
    start(0)
    named, original = [], modes.watched

    def recorded(trainer, seeds):
        watching = original(trainer, seeds)

        def advance(packed, *arguments):
            named.append((len(packed), tuple(seeds)))
            return watching.population.advance(packed, *arguments)

        return watching._replace(population=watching.population._replace(advance=advance))

    monkeypatch.setattr(modes, "watched", recorded)
    start(0, 5, 7, debug_nans=True)
    assert set(named) == {(2, (5, 7))}
