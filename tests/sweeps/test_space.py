"""The space: sizes and contents by counting, refusals by their message."""

import numpy as np
import pytest

from attention_jax.errors import UserError
from attention_jax.sweeps.space import chain, choice, grid, log_uniform, product, random, seeds, uniform, zipped


def test_a_product_has_every_combination_once_the_last_changing_fastest():
    space = product(grid("a", (1, 2)), grid("b.c", ("x", "y")), seeds(2))
    assert len(space) == 8
    assert space[0] == {"a": 1, "b.c": "x", "seeds": (0,)}
    assert space[1] == {"a": 1, "b.c": "x", "seeds": (1,)}
    assert len({repr(cell) for cell in space}) == 8


def test_zipped_goes_side_by_side_and_chain_one_after_the_other():
    assert zipped(grid("a", (1, 2)), grid("b", (3, 4))) == [{"a": 1, "b": 3}, {"a": 2, "b": 4}]
    assert chain(grid("a", (1,)), grid("b", (2,))) == [{"a": 1}, {"b": 2}]


def test_what_is_drawn_goes_by_the_key_and_stays_when_more_is_drawn():
    draws = {"a": uniform(1, 2), "b": log_uniform(1e-4, 1e-1), "c": choice(("x", "y"))}
    space = random(200, 7, **draws)
    assert space[:10] == random(10, 7, **draws)
    assert space != random(200, 8, **draws)
    assert all(1 <= cell["a"] <= 2 and 1e-4 <= cell["b"] <= 1e-1 for cell in space)
    logs = np.log10([cell["b"] for cell in space])
    assert np.mean(logs) == pytest.approx(-2.5, abs=0.3)  # every factor alike likely
    assert {cell["c"] for cell in space} == {"x", "y"}


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: grid("a", ()), "'a'.* no values"),
        (lambda: grid("a", (1, 1)), "a value twice"),
        (lambda: product(grid("a", (1,)), grid("a", (2,))), "'a' overridden twice"),
        (lambda: product(grid("a", (1,)), grid("a.b", (2,))), "'a' and 'a.b', one inside the other"),
        (lambda: zipped(grid("a", (1,)), grid("b", (2, 3))), "as many cells of each, not 1, 2"),
        (lambda: random(0, 0, a=uniform(0, 1)), "empty space"),
        (lambda: random(3, 0), "empty space"),
        (lambda: uniform(2, 1), "low < high"),
        (lambda: log_uniform(0, 1), "0 < low < high"),
        (lambda: choice(()), "no values"),
    ],
)
def test_a_space_that_cannot_be_meant_is_refused(build, message):
    with pytest.raises(UserError, match=message):
        build()
