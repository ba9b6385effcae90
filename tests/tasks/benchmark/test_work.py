"""What is measured is the work that it says: products are counted, answers equal others', searches write words."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.data.tokenizers import EOS, PAD
from attention_jax.ops.pooling import kernel_regression
from attention_jax.tasks.benchmark.cases import changed, learner_of, translator_of
from attention_jax.tasks.benchmark.decoding import searching
from attention_jax.tasks.benchmark.gpu import model_flops, words_of_step
from attention_jax.tasks.benchmark.memory import alone, own_megabytes, peak_megabytes
from attention_jax.tasks.benchmark.pairs import random_pairs
from attention_jax.tasks.benchmark.products import products
from attention_jax.tasks.benchmark.regression import KERNELS, by_numpy, memory_of
from attention_jax.tasks.benchmark.training import Rounds, prepare
from attention_jax.training.cost import flops
from configs import benchmark


@pytest.fixture(scope="module")
def config():
    return benchmark.get_config()


@pytest.fixture(scope="module")
def case(config):
    sizes = {"width": 16, "feed_forward": 16, "encoder_layers": 1, "decoder_layers": 1}
    small = {f"model.kwargs.{name}": size for name, size in sizes.items()}
    return changed(config.scaling.case, {**small, "vocabulary": 30, "pairs": 8, "batch": 4, "length": 6})


def test_products_are_those_whose_flops_are_counted():
    def program(x, w):
        return jax.lax.scan(lambda carry, _: (jnp.tanh(carry @ w), None), x, None, length=5)[0] @ w.T

    shapes = jnp.ones((3, 4)), jnp.ones((4, 4))
    counts = products(program, *shapes)
    assert {(p.batch, p.rows, p.inner, p.columns): times for p, times in counts.items()} == {(1, 3, 4, 4): 6}
    counted = sum(2 * p.batch * p.rows * p.inner * p.columns * times for p, times in counts.items())
    assert counted == flops(program, *shapes)


def test_a_steps_products_are_all_of_its_flops(config, case):
    training = prepare(case, config.optimizer)
    shapes = training.shapes(case.batch)
    counts = products(training.step, *shapes)
    counted = sum(2 * p.batch * p.rows * p.inner * p.columns * times for p, times in counts.items())
    assert counted == flops(training.step, *shapes)


def test_pairs_are_words_an_end_and_padding():
    for ids in random_pairs(20, 8, 30).values():
        for row in ids:
            length = int(np.flatnonzero(row == EOS)[0]) + 1
            assert 4 <= length <= 8
            assert (row[: length - 1] >= 4).all()
            assert (row[length:] == PAD).all()


@pytest.mark.parametrize("kernel", KERNELS)
def test_numpys_regression_is_the_projects(kernel):
    x = np.sort(np.random.default_rng(0).random((50, 1), np.float32), axis=0)
    y = np.sin(9 * x)
    found = by_numpy(x, x, y, kernel, 0.1, block=7)
    np.testing.assert_allclose(found, kernel_regression(x, x, y, kernel=kernel, width=0.1), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("beams", [1, 3])
def test_a_search_writes_as_many_words_as_it_is_asked_for(case, beams):
    learner = learner_of(case)
    variables = jax.jit(learner.init)(jax.random.key(0))
    words = searching(translator_of(case), 5, beams)(variables, learner.table["source"][:2])
    assert words.shape == (2, 5)
    assert not np.isin(words, (PAD,)).any()


def test_training_goes_on_from_round_to_round(config, case):
    rounds = Rounds(prepare(case, config.optimizer), case)
    read = [rounds.advance() for _ in range(3)]
    assert all(tokens > 0 for tokens in read)
    (state,) = rounds.packed
    assert int(state.step) == 3 * rounds.per_call


def test_a_language_models_needed_flops_leave_out_what_no_token_sees(config):
    case = config.gpu.cases["a language model of 350M"]
    sizes = {"layers": 1, "width": 16, "heads": 2, "kv_heads": 2, "feed_forward": 16, "backend": "reference"}
    small = {f"model.kwargs.{name}": size for name, size in sizes.items()}
    case = changed(case, {**small, "vocabulary": 30, "pairs": 4, "batch": 2, "length": 6, "dtype": "float32"})
    per_token = 2 * (4 * 16 * 16 + 2 * 16 * 16 + 16 * 30)
    pairs = 6 * 7 / 2  # causal
    assert model_flops(case, config.optimizer) == 3 * 2 * (6 * per_token + 2 * 2 * 16 * pairs)
    assert words_of_step(case, np.ones((4, 6))) == 12


def test_memory_is_what_work_held_at_most():
    answer, held = peak_megabytes(lambda: np.ones(2**24).sum())
    assert answer == 2**24
    assert 0.9 * 2**27 / 1e6 < held < 2**28 / 1e6


def test_memory_that_work_gives_back_counts_as_long_as_it_lasts():
    def work():
        held = np.ones(2**24)
        time.sleep(0.2)
        return held.sum()

    assert 0.9 * 2**27 / 1e6 < own_megabytes(work) < 2**28 / 1e6


def test_regression_in_a_process_of_its_own_holds_its_answer_and_no_map():
    held = alone(memory_of, "gaussian", 0.1, 2**14)
    assert 2**14 * 4 / 1e6 <= held < 2**28 * 4 / 1e6 / 5
