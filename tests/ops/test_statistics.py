"""What weights say: equal to float64 sums over the reference's weights, in memory that does not grow as those do."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.ops import statistics
from attention_jax.ops.attention import Relative, Replacement
from attention_jax.ops.dropout import Dropout
from attention_jax.ops.encoding import Spec
from attention_jax.ops.masking import causal_mask, combine, segment_mask, valid_lens_mask, window_mask
from attention_jax.ops.normalizing import NORMALIZERS
from attention_jax.ops.pooling import attend_with_weights
from attention_jax.ops.positions import make_encoding
from attention_jax.ops.scoring import SCORES, make_score
from attention_jax.ops.statistics import SUMMARY, Summary, attend_with_statistics

BATCH, HEADS, QUERIES, KEYS, SIZE = 2, 3, 7, 9, 4
PARTS = jnp.array([[0, 0, 1, 1, 1, 2, 2, 2, 9], [1, 1, 1, 1, 0, 0, 0, 0, 0]])
AT = jnp.array([[3, 0, 1, 2, 9, 5, 4]] * BATCH), jnp.array([[0, 1, 2, 0, 1, 2, 3, 4, 5]] * BATCH)
PLACED = Summary(3, 3, PARTS, *AT).with_axes(1)


@pytest.fixture(autouse=True)
def _blocks_of_two_queries(monkeypatch):
    monkeypatch.setattr(statistics, "WEIGHTS", 2 * BATCH * HEADS * KEYS)


def arrays(keys=KEYS):
    shapes = (QUERIES, keys, keys)
    drawn = (jax.random.normal(jax.random.key(n), (BATCH, HEADS, t, SIZE)) for n, t in enumerate(shapes))
    return tuple(drawn)


def summed(weights, summary):
    """The statistics of weights, a loop a query, in float64."""
    shape = weights.shape[:-1]
    queries, keys = np.arange(weights.shape[-2])[None], np.arange(weights.shape[-1])[None]
    if summary.query_positions is not None:
        queries, keys = (np.asarray(one).reshape(BATCH, -1) for one in summary[3:])
    found = {name: np.zeros(shape) for name in ("entropy", "distance", "first")}
    found["parts"] = np.zeros((*shape, summary.num_parts))
    found["top_weights"] = np.zeros((*shape, min(summary.top, weights.shape[-1])))
    for index in np.ndindex(shape):
        row, text = np.asarray(weights[index], np.float64), min(index[0], len(queries) - 1)
        found["entropy"][index] = -sum(abs(w) * math.log(abs(w)) for w in row if w)
        for weight, key in zip(row, keys[text], strict=True):
            found["distance"][index] += weight * abs(queries[text, index[-1]] - key)
            found["first"][index] += weight * (key == 0)
        if summary.parts is not None:
            parts = np.asarray(summary.parts).reshape(BATCH, -1)[index[0]]
            found["parts"][index] = [row[parts == part].sum() for part in range(summary.num_parts)]
        found["top_weights"][index] = np.sort(row)[::-1][: found["top_weights"].shape[-1]]
    return found


def require_equal(found, weights, summary):
    wanted = summed(weights, summary)
    for name, expected in wanted.items():
        np.testing.assert_allclose(getattr(found, name), expected, rtol=2e-5, atol=2e-6, err_msg=name)
    at_keys = np.take_along_axis(np.asarray(weights), np.asarray(found.top_keys), axis=-1)
    np.testing.assert_allclose(np.where(found.top_weights > 0, at_keys, 0), found.top_weights, rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(np.asarray(found.top_keys)[np.asarray(found.top_weights) == 0], 0)


def require_statistics(summary=SUMMARY, **asked):
    """They are those of the reference's weights, beside its values, whatever is asked."""
    values, found = jax.jit(lambda *a: attend_with_statistics(*a, summary, **asked))(*arrays())
    pooled, weights = jax.jit(lambda *a: attend_with_weights(*a, **asked))(*arrays())
    np.testing.assert_allclose(values, pooled, rtol=1e-5, atol=1e-6)
    require_equal(found, weights, summary)


SEGMENTS = jnp.array([[[1, 1, 2, 2, 2, 3, 3]]] * BATCH), jnp.array([[[1, 1, 2, 2, 2, 2, 3, 3, 4]]] * BATCH)
MASKS = {
    "none": None,
    "causal": causal_mask(QUERIES, KEYS),
    "window": window_mask(QUERIES, KEYS, 1),
    "lengths": valid_lens_mask(jnp.array([[5], [0]]), KEYS),
    "packed": combine(causal_mask(QUERIES, KEYS), segment_mask(*SEGMENTS)),
    "array": jax.random.bernoulli(jax.random.key(7), 0.4, (BATCH, 1, QUERIES, KEYS)),
}


@pytest.mark.parametrize("mask", MASKS)
def test_statistics_are_those_of_the_references_weights_for_every_mask(mask):
    require_statistics(PLACED, mask=MASKS[mask])


@pytest.mark.parametrize("normalize", NORMALIZERS)
def test_statistics_are_those_of_the_references_weights_for_every_normalizer(normalize):
    score = "kernel:width=3" if normalize == "sum" else "scaled_dot"
    require_statistics(mask=MASKS["lengths"], normalize=normalize, score=score)


@pytest.mark.parametrize("name", SCORES)
def test_statistics_are_those_of_the_references_weights_for_every_score(name):
    score, normalize = make_score(name), "sum" if make_score(name).is_weight else "softmax"
    params = score.init(jax.random.key(3), SIZE, SIZE, SIZE)
    require_statistics(score=score, score_params=params, normalize=normalize)


@pytest.mark.parametrize("encoding", ["alibi", "t5", "shaw"])
def test_statistics_are_those_of_the_references_weights_for_every_kind_of_position_bias(encoding):
    record, positions = make_encoding(encoding), [jnp.arange(length)[None] for length in (QUERIES, KEYS)]
    params = record.init(jax.random.key(0), Spec(HEADS * SIZE, HEADS, SIZE, 32, True))
    relative = Relative(record.bias, None, record.mix, params, *positions)
    require_statistics(relative=relative, mask=MASKS["causal"])


def test_statistics_are_those_of_weights_with_a_bias_that_fall_off_or_that_replace_others():
    bias = jax.random.normal(jax.random.key(5), (HEADS, QUERIES, KEYS))
    falloff = lambda params, queries, keys: jnp.exp(-jnp.abs(queries[..., :, None] - keys[..., None, :]))  # noqa: E731
    centres, positions = jax.random.uniform(jax.random.key(6), (1, QUERIES)) * KEYS, jnp.arange(KEYS)[None]
    others = jax.nn.softmax(jax.random.normal(jax.random.key(8), (1, HEADS, QUERIES, KEYS)))
    chosen = jnp.array([True, False, True]).reshape(HEADS, 1, 1)
    require_statistics(bias=bias)
    require_statistics(bias=bias[:, :1], relative=Relative(falloff=falloff, queries=centres, keys=positions))
    require_statistics(replacement=Replacement(chosen, others))


def test_a_query_that_may_attend_to_nothing_gets_zeros_and_finite_gradients():
    mask = valid_lens_mask(jnp.array([[9, 0, 3, 0, 1, 9, 0]]), KEYS, per_query=True)

    def total(*arrays):
        values, found = attend_with_statistics(*arrays, mask=mask)
        return sum(map(jnp.sum, (values, *found[:5]))), found

    (_, found), gradients = jax.jit(jax.value_and_grad(total, argnums=(0, 1, 2), has_aux=True))(*arrays())
    for part in found:
        np.testing.assert_array_equal(np.asarray(part)[:, :, [1, 3, 6]], 0)
    assert all(np.isfinite(gradient).all() for gradient in gradients)


def test_gradients_are_those_of_sums_over_the_whole_map():
    def of_map(*arrays):
        weights = attend_with_weights(*arrays, mask=MASKS["causal"])[1]
        return -jnp.sum(weights * jnp.log(jnp.where(weights > 0, weights, 1)))

    of_blocks = lambda *a: jnp.sum(attend_with_statistics(*a, mask=MASKS["causal"])[1].entropy)  # noqa: E731
    found, wanted = (jax.jit(jax.grad(f, argnums=(0, 1)))(*arrays()) for f in (of_blocks, of_map))
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_a_vmap_gives_what_each_text_gives_alone():
    ask = functools.partial(attend_with_statistics, mask=MASKS["causal"])
    together = jax.jit(jax.vmap(ask))(*arrays())
    for index in range(BATCH):
        alone = ask(*(array[index] for array in arrays()))
        jax.tree.map(
            lambda one, all_, at=index: np.testing.assert_allclose(one, all_[at], rtol=1e-5, atol=1e-6), alone, together
        )


def test_equal_weights_have_the_entropy_of_their_number_and_one_weight_has_none():
    ones = jnp.zeros((KEYS, SIZE))
    _, found = attend_with_statistics(ones, ones, ones, Summary(top=20), mask=causal_mask(KEYS, KEYS))
    np.testing.assert_allclose(found.entropy, np.log(np.arange(KEYS) + 1), rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found.distance, np.arange(KEYS) / 2, rtol=1e-6)
    np.testing.assert_allclose(found.first, 1 / (np.arange(KEYS) + 1), rtol=1e-6)
    assert found.top_keys.shape == (KEYS, KEYS)  # there are no more


@pytest.mark.parametrize(("queries", "keys"), [(0, 5), (5, 0)])
def test_without_keys_all_is_zero_and_without_queries_there_is_nothing(queries, keys):
    shapes = [(2, length, SIZE) for length in (queries, keys, keys)]
    values, found = jax.jit(attend_with_statistics)(*map(jnp.ones, shapes))
    np.testing.assert_array_equal(values, np.zeros((2, queries, SIZE)))
    for part in found:
        np.testing.assert_array_equal(part, np.zeros((2, queries, *part.shape[2:])))


@pytest.mark.parametrize("has_gradient", [False, True])
def test_memory_grows_with_the_length_and_not_with_its_square(has_gradient, monkeypatch):
    monkeypatch.undo()

    def entropy(query, key, value):
        mask = causal_mask(query.shape[-2], key.shape[-2])
        values, found = attend_with_statistics(query, key, value, mask=mask)
        return jnp.sum(values) + jnp.sum(found.entropy)

    def bytes_of(length):
        shape = jax.ShapeDtypeStruct((1, 2, length, 16), jnp.float32)
        program = jax.grad(entropy, argnums=(0, 1, 2)) if has_gradient else entropy
        return jax.jit(program).lower(shape, shape, shape).compile().memory_analysis().temp_size_in_bytes

    short, long = bytes_of(8192), bytes_of(16384)
    assert long < 2.2 * short
    assert long < 16384**2 / 8


@pytest.mark.parametrize(
    ("summary", "asked", "message"),
    [
        (Summary(top=-1), {}, "top=-1: needs 0 or more"),
        (Summary(num_parts=2), {}, "num_parts=2: give parts and their number, 1 or more, or neither"),
        (Summary(parts=PARTS), {}, "num_parts=0: give parts and their number"),
        (Summary(3, 3, PARTS[:, 1:]), {}, r"parts has shape \(2, 8\), needs 9 along its last axis"),
        (Summary(), {"dropout": Dropout(jax.random.key(0), 0.1)}, "dropout: statistics are of attention without it"),
        (Summary(), {"mask": causal_mask(QUERIES, KEYS + 1)}, r"mask \(.*10\) does not broadcast"),
        (Summary(), {"normalize": "hardmax"}, "normalize='hardmax': choose one of"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(summary, asked, message):
    with pytest.raises(ValueError, match=message):
        attend_with_statistics(*arrays(), summary, **asked)
