"""Recurrent cells: the LSTM's equations (the GRU's are tested with Bahdanau's model), batch axes, padding, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.ops.recurrent import CELLS, CellWeights, over_time, recurrent

KEYS = jax.random.split(jax.random.key(0), 5)
WEIGHTS = {
    "gru": CellWeights(*(jax.random.normal(k, s) for k, s in zip(KEYS, ((3, 12), (4, 12), (12,), (4,)), strict=False))),
    "lstm": CellWeights(*(jax.random.normal(k, s) for k, s in zip(KEYS, ((3, 16), (4, 16), (16,)), strict=False))),
}
X = jax.random.normal(KEYS[4], (2, 3, 5, 3))
VALID = jnp.ones((2, 3, 5), bool)


def test_an_lstm_is_its_equations():
    w_i, w_h, bias, _ = (None if w is None else np.asarray(w, np.float64) for w in WEIGHTS["lstm"])
    h, c = np.zeros(4), np.zeros(4)
    for x in np.asarray(X[1, 2], np.float64):
        i, f, g, o = np.split(x @ w_i + h @ w_h + bias, 4)
        c = c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
        h = np.tanh(c) / (1 + np.exp(-o))
    _, last = recurrent("lstm", X, VALID, WEIGHTS["lstm"])
    np.testing.assert_allclose(last[0][1, 2], h, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(last[1][1, 2], c, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("reverse", [False, True])
def test_any_number_of_batch_axes(cell, reverse):
    outputs, last = recurrent(cell, X, VALID, WEIGHTS[cell], reverse)
    assert outputs.shape == (2, 3, 5, 4)
    alone, last_alone = recurrent(cell, X[1, 2], VALID[1, 2], WEIGHTS[cell], reverse)
    np.testing.assert_allclose(outputs[1, 2], alone, rtol=1e-5, atol=1e-6)
    for part, part_alone in zip(last, last_alone, strict=True):
        np.testing.assert_allclose(part[1, 2], part_alone, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(last[0], outputs[..., 0 if reverse else -1, :])


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("reverse", [False, True])
def test_padding_changes_nothing(cell, reverse):
    valid = VALID.at[..., 3:].set(False)
    outputs, last = recurrent(cell, X, valid, WEIGHTS[cell], reverse)
    short, last_short = recurrent(cell, X[..., :3, :], VALID[..., :3], WEIGHTS[cell], reverse)
    np.testing.assert_allclose(outputs[..., :3, :], short, rtol=1e-5, atol=1e-6)
    for part, part_short in zip(last, last_short, strict=True):
        np.testing.assert_allclose(part, part_short, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("reverse", [False, True])
def test_what_is_computed_again_gives_the_gradients_of_a_plain_loop(cell, reverse):
    of_plain, of_again = gradients(jax.lax.scan, cell, reverse), gradients(over_time, cell, reverse)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), of_again, of_plain)


@pytest.mark.parametrize("cell", CELLS)
def test_a_backward_pass_reads_less_than_that_of_a_plain_loop(cell):
    assert sum(leaf.size for leaf in kept(over_time, cell)) < sum(leaf.size for leaf in kept(jax.lax.scan, cell))


def test_misfits_are_refused_by_name_and_shape():
    with pytest.raises(ValueError, match=r"w_i has shape \(3, 12\), needs \(2, 12\): x is \(2, 3, 5, 2\)"):
        recurrent("gru", X[..., :2], VALID, WEIGHTS["gru"])
    with pytest.raises(ValueError, match=r"valid has shape \(2, 3, 4\), needs \(2, 3, 5\)"):
        recurrent("gru", X, VALID[..., 1:], WEIGHTS["gru"])


def looped(loop, cell, reverse):
    """The outputs of a loop over the first axis of inputs, as a function of a cell's weights and of these."""

    def outputs(weights, x):
        step = lambda state, gates: (CELLS[cell].step(state, gates, weights),) * 2  # noqa: E731
        start = (jnp.zeros((5, 4)),) * CELLS[cell].parts
        return loop(step, start, weights.project(x), reverse=reverse)[1][0]

    return outputs


def gradients(loop, cell, reverse):
    outputs = looped(loop, cell, reverse)
    return jax.grad(lambda *given: jnp.sum(jnp.sin(outputs(*given))), argnums=(0, 1))(WEIGHTS[cell], X[0])


def kept(loop, cell):
    return jax.tree.leaves(jax.vjp(looped(loop, cell, False), WEIGHTS[cell], X[0])[1])


@pytest.mark.parametrize("cell", CELLS)
def test_gradients_of_a_long_bfloat16_sequence_are_sums_over_time_in_the_weights_type(cell):
    x, valid = jax.random.normal(KEYS[0], (8, 512, 3)).astype(jnp.bfloat16), jnp.ones((8, 512), bool)

    @jax.jit
    def gradient(weights, x):
        loss = lambda w_h: jnp.mean(recurrent(cell, x, valid, weights._replace(w_h=w_h))[0].astype(jnp.float32))  # noqa: E731
        return jax.grad(loss)(weights.w_h)

    weights = jax.tree.map(lambda array: array / 4, WEIGHTS[cell])
    full, half = gradient(weights, x.astype(jnp.float32)), gradient(weights, x)
    early = gradient(jax.tree.map(lambda array: array.astype(jnp.bfloat16), weights), x)
    error = lambda found: np.linalg.norm(found.astype(jnp.float32) - full) / np.linalg.norm(full)  # noqa: E731
    assert error(half) < 0.02 < error(early)  # of weights that are rounded before the sequence is read
