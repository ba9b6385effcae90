"""Masks against their definitions, and the softmax that respects them."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.ops.masking import (
    MaskRule,
    Rule,
    as_rule,
    causal_mask,
    combine,
    keys_mask,
    masked_normalize,
    masked_softmax,
    materialize,
    near_mask,
    parts,
    prefix_mask,
    segment_mask,
    valid_lens_mask,
    window_mask,
    with_axes,
)

Q, K = 5, 7
LENGTHS = np.array([0, 3, 7])
PER_QUERY = np.arange(15).reshape(3, 5) % 8
SEGMENTS = np.array([[0, 0, 1, 1, 2], [0, 1, 1, 1, 3], [4, 4, 4, 4, 4]])
KEY_SEGMENTS = np.array([[0, 0, 1, 1, 2, 2, 2], [0, 1, 1, 1, 1, 3, 3], [4, 4, 0, 0, 0, 0, 4]])
CASES = {
    "valid_lens": (valid_lens_mask(LENGTHS, K), lambda b, q, k: k < LENGTHS[b]),
    "valid_lens_per_query": (valid_lens_mask(PER_QUERY, K, per_query=True), lambda b, q, k: k < PER_QUERY[b, q]),
    "causal": (causal_mask(Q, K), lambda b, q, k: k <= q),
    "causal_offset": (causal_mask(Q, K, 2), lambda b, q, k: k <= q + 2),
    "causal_offset_each": (causal_mask(Q, K, LENGTHS), lambda b, q, k: k <= q + LENGTHS[b]),
    "window": (window_mask(Q, K, 1), lambda b, q, k: abs(q - k) <= 1),
    "window_offset": (window_mask(Q, K, 2, LENGTHS), lambda b, q, k: abs(q + LENGTHS[b] - k) <= 2),
    "prefix": (prefix_mask(Q, K, LENGTHS), lambda b, q, k: k <= q or k < LENGTHS[b]),
    "segment": (segment_mask(SEGMENTS, KEY_SEGMENTS), lambda b, q, k: SEGMENTS[b, q] == KEY_SEGMENTS[b, k]),
}


def definition(allowed):
    return np.array([[[allowed(b, q, k) for k in range(K)] for q in range(Q)] for b in range(3)])


@pytest.mark.parametrize("name", CASES)
def test_a_mask_is_its_definition(name):
    mask, allowed = CASES[name]
    array = materialize(mask)
    assert array.dtype == bool
    np.testing.assert_array_equal(np.broadcast_to(array, (3, Q, K)), definition(allowed))


@pytest.mark.parametrize("name", CASES)
def test_a_block_of_a_rule_is_a_block_of_its_array(name):
    mask, allowed = CASES[name]
    rows, columns = jnp.array([1, 4]), jnp.array([0, 2, 6])
    block = np.broadcast_to(mask.block(rows, columns), (3, 2, 3))
    np.testing.assert_array_equal(block, definition(allowed)[:, rows][:, :, columns])


EXACT = ("valid_lens", "valid_lens_per_query", "causal", "causal_offset", "causal_offset_each", "window")


@pytest.mark.parametrize("name", CASES)
def test_a_rule_never_calls_a_block_empty_in_which_a_query_may_attend(name):
    mask, allowed = CASES[name]
    for rows, columns in itertools.product(([0, 1], [2, 3], [4]), ([0, 1, 2], [3, 4], [5, 6])):
        rows, columns = np.array(rows), np.array(columns)
        found, right = mask.may_allow(rows, columns), definition(allowed)[:, rows][:, :, columns].any()
        assert found == right if name in EXACT else found >= right


def test_the_shapes_of_length_masks():
    assert materialize(valid_lens_mask(LENGTHS, K)).shape == (3, 1, K)
    assert materialize(valid_lens_mask(PER_QUERY, K, per_query=True)).shape == (3, 5, K)


@pytest.mark.parametrize("first", CASES)
@pytest.mark.parametrize("second", ["valid_lens", "causal", "segment"])
def test_combined_masks_allow_what_all_allow(first, second):
    expected = definition(CASES[first][1]) & definition(CASES[second][1])
    masks = CASES[first][0], CASES[second][0]
    rule = combine(*masks, None)
    assert isinstance(rule, MaskRule)
    np.testing.assert_array_equal(np.broadcast_to(materialize(rule), (3, Q, K)), expected)
    mixed = combine(masks[0], materialize(masks[1]))
    np.testing.assert_array_equal(np.broadcast_to(mixed, (3, Q, K)), expected)


def test_a_rule_for_one_query_is_not_a_rule_for_all():
    with pytest.raises(ValueError, match=r"do not combine: \[1, 5\], \[4, 5\]"):
        combine(causal_mask(1, 5), window_mask(4, 5, 4))


def test_batch_axes_that_do_not_broadcast_are_refused():
    with pytest.raises(ValueError, match=r"masks of shapes \(2, 1, 7\), \(3, 1, 7\) do not combine"):
        materialize(combine(valid_lens_mask(LENGTHS[:2], K), valid_lens_mask(LENGTHS, K)))
    with pytest.raises(ValueError, match=r"query_segments \(3, 5\) and key_segments \(2, 7\) differ"):
        segment_mask(SEGMENTS, KEY_SEGMENTS[:2])


def test_a_mask_of_sentences_is_not_one_of_heads_where_they_are_as_many():
    scores, lengths = jnp.zeros((3, 3, Q, K)), valid_lens_mask(LENGTHS, K)
    message = r"mask \(3, 1, 7\) has batch axes \(3,\) and the scores \(3, 3, 5, 7\) have \(3, 3\): .* mask\[:, None\]"
    for normalize in (masked_softmax, masked_normalize):
        with pytest.raises(ValueError, match=message):
            normalize(scores, lengths)
    with pytest.raises(ValueError, match=r"mask \(3, 1, 7\) has batch axes \(3,\) and the others \(3, 3, 5, 7\)"):
        combine(jnp.ones(scores.shape, bool), lengths)
    with pytest.raises(ValueError, match=r"mask \(3, 1, 1\) has batch axes \(3,\) and the others \(3, 3, 5, 7\)"):
        materialize(window_mask(Q, K, LENGTHS, jnp.zeros((3, 3), int)))
    each = masked_softmax(scores, materialize(lengths)[:, None])
    np.testing.assert_array_equal(each[1, :, :, 3:], 0)
    np.testing.assert_allclose(each[1, :, :, :3], 1 / 3, rtol=1e-6)
    np.testing.assert_array_equal(jax.vmap(masked_softmax)(scores, lengths.block(jnp.arange(1), jnp.arange(K))), each)


@pytest.mark.parametrize("shape", [(Q, K), (1, K), (1, Q, K), (1, 1, Q, K), (3, 1, 1, K), (3, 2, Q, K)])
def test_a_mask_has_the_scores_batch_axes_or_none(shape):
    weights = masked_softmax(jnp.zeros((3, 2, Q, K)), jnp.ones(shape, bool))
    np.testing.assert_allclose(weights, 1 / K, rtol=1e-6)


def test_combining_nothing_is_no_mask():
    assert combine() is None
    assert combine(None, None) is None


def test_masks_over_different_lengths_do_not_combine():
    with pytest.raises(ValueError, match=r"do not combine: \[4, 4\], \[1, 7\]"):
        combine(causal_mask(4, 4), valid_lens_mask(LENGTHS, 7))


def test_a_rule_passes_through_jit_and_is_compiled_once():
    traces = []

    @jax.jit
    def weights(scores, mask):
        traces.append(1)
        return masked_softmax(scores, mask)

    for length in (2, 3):
        mask = combine(causal_mask(Q, K), valid_lens_mask(jnp.array([length] * 3), K))
        assert not weights(jnp.ones((3, Q, K)), mask)[..., length:].any()
    assert len(traces) == 1


def softmax_oracle(scores, allowed):
    scores = np.asarray(scores, np.float64)
    out = np.zeros(scores.shape)
    for index in np.ndindex(scores.shape[:-1]):
        keys = np.flatnonzero(allowed[index])
        if len(keys):
            e = np.exp(scores[index][keys] - scores[index][keys].max())
            out[index][keys] = e / e.sum()
    return out


@pytest.mark.parametrize("name", CASES)
def test_masked_softmax_is_a_softmax_over_the_allowed_keys(name, random):
    scores = random.normal(size=(3, Q, K)).astype(np.float32) * 10
    weights = masked_softmax(jnp.asarray(scores), CASES[name][0])
    np.testing.assert_allclose(weights, softmax_oracle(scores, definition(CASES[name][1])), atol=1e-6)


def test_a_query_with_no_keys_attends_to_nothing_and_its_gradient_is_finite():
    def total(scores):
        return jnp.sum(masked_softmax(scores, jnp.zeros((Q, K), bool)) ** 2)

    scores = jnp.full((Q, K), jnp.inf).at[0].set(-jnp.inf).at[1].set(3.0)
    assert not masked_softmax(scores, jnp.zeros((Q, K), bool)).any()
    assert jnp.isfinite(jax.grad(total)(jnp.ones((Q, K)))).all()


def test_a_row_of_minus_infinity_attends_to_nothing_and_its_gradient_is_finite():
    scores = jnp.zeros((2, K)).at[0].set(-jnp.inf)
    assert not masked_softmax(scores)[0].any()
    assert jnp.isfinite(jax.grad(lambda s: masked_softmax(s)[:, 0].sum())(scores)).all()


def test_what_is_masked_has_no_influence_even_when_not_finite():
    mask = jnp.arange(K)[None] < 3
    scores = jnp.where(mask, 1.0, jnp.nan) * jnp.ones((Q, 1))
    gradient = jax.grad(lambda s: jnp.sum(masked_softmax(s, mask)[:, 0] ** 2))(scores)
    np.testing.assert_allclose(masked_softmax(scores, mask)[:, :3], 1 / 3, rtol=1e-6)
    assert jnp.isfinite(gradient[:, :3]).all()


def test_a_mask_that_is_not_boolean_or_does_not_fit_is_refused():
    with pytest.raises(TypeError, match="mask has dtype float32, needs bool"):
        masked_softmax(jnp.ones((Q, K)), jnp.ones((Q, K)))
    with pytest.raises(TypeError, match="valid has dtype int32, needs bool"):
        keys_mask(jnp.ones(K, jnp.int32))
    with pytest.raises(ValueError, match=r"mask \(5, 6\) does not broadcast to the scores \(5, 7\)"):
        masked_softmax(jnp.ones((Q, K)), jnp.ones((Q, K - 1), bool))
    with pytest.raises(ValueError, match=r"mask \(2, 1, 7\) does not broadcast to the scores \(5, 7\)"):
        masked_softmax(jnp.ones((Q, K)), jnp.ones((2, 1, K), bool))


def test_normalizing_weights_divides_by_their_sum_and_states_what_emptiness_means():
    weights = jnp.array([[1.0, 3.0, 0.0], [0.0, 0.0, 0.0]])
    mask = jnp.array([[True, True, True], [True, True, False]])
    np.testing.assert_allclose(masked_normalize(weights, mask), [[0.25, 0.75, 0], [0, 0, 0]])
    np.testing.assert_allclose(masked_normalize(weights, mask, "mean"), [[0.25, 0.75, 0], [0.5, 0.5, 0]])
    with pytest.raises(ValueError, match="empty='nan': choose 'zeros' or 'mean'"):
        masked_normalize(weights, mask, "nan")


def test_bfloat16_scores_are_summed_in_float32():
    scores = jnp.zeros((1, 4096), jnp.bfloat16)  # in bfloat16 a sum of ones stops at 256
    weights = masked_softmax(scores)
    assert weights.dtype == jnp.bfloat16
    np.testing.assert_allclose(weights.astype(jnp.float32).sum(), 1, rtol=1e-2)


def kinds(mask):
    return [part.kind for part in parts(mask)]


def test_a_mask_says_what_it_is_the_conjunction_of():
    lengths, valid, segments = jnp.array([3, 5]), jnp.ones((2, 5), bool), jnp.zeros((2, 5), int)
    every = {
        "causal": causal_mask(5, 5),
        "window": window_mask(5, 5, 2),
        "lengths": valid_lens_mask(lengths, 5),
        "lengths by query": valid_lens_mask(segments, 5, per_query=True),
        "keys": keys_mask(valid),
        "prefix": prefix_mask(5, 5, 2),
        "segments": segment_mask(segments, segments),
        "near": near_mask(jnp.zeros((2, 5)), 2, 5),
        "array": as_rule(jnp.ones((5, 5), bool), 5),
        "rule": MaskRule((Rule(lambda q, k: k <= q),), 5, 5),
    }
    for kind, mask in every.items():
        assert kinds(mask) == kinds(with_axes(mask, 2)) == [kind]
    together = combine(*every.values())
    assert kinds(combine(together, causal_mask(5, 5))) == [*every, "causal"]
    assert kinds(None) == kinds(as_rule(None, 5)) == []
    assert kinds(jnp.ones((5, 5), bool)) == ["array"]


def test_its_numbers_stay_numbers_also_under_jit_and_its_arrays_get_its_axes():
    segments = jnp.zeros((2, 5), int)
    mask = combine(window_mask(5, 5, 2), valid_lens_mask(jnp.array([3, 5]), 5), segment_mask(segments, segments))
    seen = {}

    @jax.jit
    def look(mask, offset):
        for part in parts(combine(with_axes(mask, 2), causal_mask(5, 5, offset))):
            seen[part.kind] = part.values if part.kind == "window" else [value.shape for value in part.values]

    look(mask, 1)
    assert seen == {"window": (2, 0), "lengths": [(2, 1, 1)], "segments": [(2, 1, 1, 5)] * 2, "causal": [()]}


def test_masks_of_equal_numbers_are_one_to_jit():
    count = []
    read = jax.jit(lambda mask: count.append(1) or materialize(mask))
    for reach in (2, 2, 3):
        read(window_mask(5, 5, reach))
    assert len(count) == 2
