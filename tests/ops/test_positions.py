"""Position encodings by their properties, each against its definition."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax.ops.masking import causal_mask
from attention_jax.ops.pooling import attention_weights
from attention_jax.ops.positions import (
    ENCODINGS,
    SCALINGS,
    Spec,
    alibi_slopes,
    binary,
    make_encoding,
    require_room,
    require_usable,
    rotate,
    sinusoidal,
    sinusoidal_table,
    t5_bucket,
)

SPEC = Spec(width=12, heads=3, head_size=4, max_length=16, is_causal=True)
BIASED = [name for name, encoding in ENCODINGS.items() if encoding.bias is not None]
RELATIVE = [name for name in BIASED if "fire" not in name]  # FIRE's scale is of the query's own position


def bias_of(name, query_positions, key_positions, spec=SPEC, key=0):
    encoding = ENCODINGS[name]
    params = encoding.init(jax.random.key(key), spec)
    shape = (2, spec.heads, len(query_positions), spec.head_size)
    query = np.random.default_rng(9).normal(size=shape).astype(np.float32)
    return jax.jit(encoding.bias)(
        params, query, *(np.array(places)[None] for places in (query_positions, key_positions))
    )


def test_a_shift_rotates_every_pair_of_a_sinusoid():
    """(sin(i + δ)ω, cos(i + δ)ω) is (sin iω, cos iω) turned by δω, for every frequency (§3.5)."""
    width, shift = 16, 7
    table = np.asarray(sinusoidal_table(40, width), np.float64)
    frequencies = 10000.0 ** (-np.arange(0, width, 2) / width)
    for pair, omega in enumerate(frequencies):
        cos, sin = np.cos(shift * omega), np.sin(shift * omega)
        turned = table[:-shift, 2 * pair : 2 * pair + 2] @ np.array([[cos, -sin], [sin, cos]])
        np.testing.assert_allclose(turned, table[shift:, 2 * pair : 2 * pair + 2], atol=1e-5)


def test_positions_are_explicit_and_any_batch_axes_go():
    positions = jnp.array([[[3, 0, 12]], [[1, 1, 2]]])
    np.testing.assert_array_equal(sinusoidal(positions, 8), sinusoidal_table(13, 8)[positions])


def test_what_is_added_does_not_depend_on_what_it_is_added_to():
    add = ENCODINGS["sinusoidal"].add
    x, positions = jnp.ones((2, 3, 8)), jnp.array([[0, 1, 2]])
    np.testing.assert_allclose(add(None, x, positions) - x, add(None, 0 * x, positions), atol=1e-6)
    assert ENCODINGS["none"].add is None


def test_an_odd_width_is_refused():
    with pytest.raises(ValueError, match="width=7: needs an even number"):
        sinusoidal_table(3, 7)


def test_binary_digits_are_those_of_the_position():
    positions = np.array([0, 1, 5, 1000, 2**30])
    expected = [[(int(i) >> j) & 1 for j in range(40)] for i in positions]
    np.testing.assert_array_equal(binary(jnp.asarray(positions), 40), expected)


def test_rotary_scores_depend_on_the_distance_alone_and_lengths_stay(random):
    query, key = (jnp.asarray(random.normal(size=(5, 8)), jnp.float32) for _ in range(2))
    positions = jnp.array([3, 0, 7, 7, 12])

    def scores(shift):
        return rotate(query, positions + shift) @ rotate(key, positions + shift).T

    np.testing.assert_allclose(scores(0), scores(1000), atol=2e-3)
    assert np.abs(scores(0) - rotate(query, positions) @ rotate(key, positions + 1).T).max() > 0.01
    np.testing.assert_allclose(
        jnp.linalg.norm(rotate(query, positions), axis=-1), jnp.linalg.norm(query, axis=-1), rtol=1e-5
    )


@pytest.mark.parametrize("name", ["rotary", "sinusoidal", "learned"])
def test_whole_numbers_are_encoded_as_numbers(name):
    x, positions, record = np.arange(12).reshape(3, 4), np.arange(3), make_encoding(name)
    params = record.init(jax.random.key(0), Spec(4, 1, 4, 8, True)) if record.init else {}
    act = record.rotate or record.add
    np.testing.assert_array_equal(act(params, x, positions), act(params, x.astype(np.float32), positions))


def test_rotary_turns_each_pair_by_its_frequency(random):
    x, positions = random.normal(size=(3, 6)), np.array([0, 4, 11])
    turned = np.asarray(rotate(jnp.asarray(x, jnp.float32), jnp.asarray(positions)))
    for row, i in enumerate(positions):
        for pair in range(3):
            angle = i * 10000 ** (-2 * pair / 6)
            matrix = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
            np.testing.assert_allclose(
                turned[row, 2 * pair : 2 * pair + 2], matrix @ x[row, 2 * pair : 2 * pair + 2], atol=1e-4
            )


def test_a_part_of_the_features_may_stay(random):
    x = jnp.asarray(random.normal(size=(4, 8)), jnp.float32)
    turned = rotate(x, jnp.arange(4), fraction=0.5)
    np.testing.assert_array_equal(turned[:, 4:], x[:, 4:])
    np.testing.assert_allclose(turned[:, :4], rotate(x[:, :4], jnp.arange(4)), atol=1e-6)


def test_scalings_make_room_as_they_say(random):
    x = jnp.asarray(random.normal(size=(1, 8)), jnp.float32)
    at = lambda position, **options: rotate(x, jnp.array([position]), **options)  # noqa: E731
    np.testing.assert_allclose(at(40, scaling="interpolation", factor=4.0), at(10), atol=1e-5)
    ntk = at(40, scaling="ntk", factor=4.0)
    np.testing.assert_allclose(ntk[:, :2], at(40)[:, :2], atol=1e-5)  # the fastest pair turns as before,
    np.testing.assert_allclose(ntk[:, 6:], at(10)[:, 6:], atol=1e-5)  # the slowest as interpolated
    yarn = at(40, scaling="yarn", factor=4.0, trained_length=400) / (0.1 * math.log(4) + 1)
    np.testing.assert_allclose(yarn[:, :2], at(40)[:, :2], atol=1e-5)
    np.testing.assert_allclose(yarn[:, 6:], at(10)[:, 6:], atol=1e-5)
    np.testing.assert_allclose(at(40, scaling="yarn", factor=1.0, trained_length=400), at(40), atol=1e-6)


def yarn_index_oracle(size, base, factor, trained_length):
    """Speeds one pair at a time, as YaRN's authors' code has them."""

    def dimension(rotations):
        return size * math.log(trained_length / (rotations * 2 * math.pi)) / (2 * math.log(base))

    low, high = max(math.floor(dimension(32)), 0), min(math.ceil(dimension(1)), size - 1)
    if low == high:
        high += 0.001
    speeds = []
    for pair in range(size // 2):
        ramp = min(max((pair - low) / (high - low), 0), 1)
        speed = base ** (-2 * pair / size)
        speeds.append(speed / factor * ramp + speed * (1 - ramp))
    return np.array(speeds)


@pytest.mark.parametrize(
    ("size", "base", "factor", "trained_length"),
    [(32, 1e4, 4.0, 64), (128, 1e4, 8.0, 4096), (64, 5e5, 2.0, 8192), (8, 1e4, 4.0, 7), (16, 100.0, 4.0, 100_000)],
)
def test_yarn_by_index_is_its_authors_code_pair_by_pair(size, base, factor, trained_length):
    speeds, gain = SCALINGS["yarn_index"](size, base, factor, trained_length)
    np.testing.assert_allclose(speeds, yarn_index_oracle(size, base, factor, trained_length), rtol=1e-5)
    assert gain == pytest.approx(0.1 * math.log(factor) + 1)


def test_yarns_two_ramps_are_two_encodings():
    of_paper, of_code = (SCALINGS[name](32, 1e4, 4.0, 64)[0] for name in ("yarn", "yarn_index"))
    np.testing.assert_allclose(of_paper[:3], [0.472, 0.205, 0.096], atol=5e-4)
    np.testing.assert_allclose(of_code[:3], [1.0, 0.478, 0.221], atol=5e-4)
    np.testing.assert_allclose(of_code[5:], of_paper[5:], rtol=1e-6)  # both interpolate the slow ones


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12, 16])
def test_alibis_slopes_are_a_geometric_sequence_and_fill_in_between(heads):
    slopes = np.asarray(alibi_slopes(heads))
    power = 2 ** int(math.log2(heads))
    np.testing.assert_allclose(slopes[:power], [2 ** (-8 * (h + 1) / power) for h in range(power)], rtol=1e-6)
    doubled = np.asarray(alibi_slopes(2 * power))
    np.testing.assert_allclose(slopes[power:], doubled[0::2][: heads - power], rtol=1e-6)
    assert len(slopes) == heads


@pytest.mark.parametrize("bidirectional", [True, False])
@pytest.mark.parametrize(("buckets", "longest"), [(32, 128), (8, 20)])
def test_t5s_buckets_are_their_definition_at_every_offset(bidirectional, buckets, longest):
    def bucket(offset):  # key − query
        count, base = buckets, 0
        if bidirectional:
            count //= 2
            base = count if offset > 0 else 0
            distance = abs(offset)
        else:
            distance = max(-offset, 0)
        exact = count // 2
        if distance < exact:
            return base + distance
        far = exact + math.floor(math.log(distance / exact) / math.log(longest / exact) * (count - exact) + 1e-9)
        return base + min(far, count - 1)

    offsets = np.arange(-300, 301)
    found = t5_bucket(jnp.asarray(offsets), bidirectional=bidirectional, num_buckets=buckets, max_distance=longest)
    np.testing.assert_array_equal(found, [bucket(int(offset)) for offset in offsets])


Q_POSITIONS, K_POSITIONS = [0, 2, 9, 40], [0, 1, 2, 9, 30]


@pytest.mark.parametrize("name", ["alibi", "randomized_alibi"])
def test_alibi_is_less_the_farther_a_key_is_on_either_side_by_each_heads_slope(name):
    bias = np.broadcast_to(bias_of(name, Q_POSITIONS, K_POSITIONS, SPEC._replace(heads=4)), (2, 4, 4, 5))
    for head in range(4):
        for q, i in enumerate(Q_POSITIONS):
            for k, j in enumerate(K_POSITIONS):
                np.testing.assert_allclose(bias[:, head, q, k], -(2 ** (-2 * (head + 1))) * abs(i - j), rtol=1e-6)


@pytest.mark.parametrize("is_causal", [True, False])
def test_t5s_bias_is_the_row_of_the_keys_bucket_and_the_column_of_the_head(is_causal):
    spec = SPEC._replace(is_causal=is_causal)
    ((name, table),) = ENCODINGS["t5"].init(jax.random.key(0), spec).items()
    assert name == ("causal" if is_causal else "both_ways")
    bias = np.broadcast_to(bias_of("t5", Q_POSITIONS, K_POSITIONS, spec), (2, 3, 4, 5))
    for head in range(3):
        for q, i in enumerate(Q_POSITIONS):
            for k, j in enumerate(K_POSITIONS):
                row = t5_row(j - i, 32, 128) if is_causal else 16 * (j > i) + t5_row(-abs(j - i), 16, 128)
                np.testing.assert_array_equal(bias[:, head, q, k], table[row, head])


def t5_row(offset, count, longest):
    """The row of a key behind its query, by key − query; of a key ahead, the first."""
    exact, distance = count // 2, max(-offset, 0)
    if distance < exact:
        return distance
    return min(exact + int(math.log(distance / exact) / math.log(longest / exact) * (count - exact)), count - 1)


@pytest.mark.parametrize("clip", [1, 3])
def test_shaws_keys_and_values_are_a_loops(random, clip):
    encoding, spec = make_encoding("shaw", clip=clip), SPEC
    params = encoding.init(jax.random.key(0), spec)
    query = random.normal(size=(2, 3, 5, 4)).astype(np.float32)
    weights = random.random(size=(2, 3, 5, 6)).astype(np.float32)
    q_positions, k_positions = np.array([0, 2, 3, 9, 10]), np.array([0, 1, 2, 3, 9, 30])
    bias, mixed = np.zeros((2, 3, 5, 6)), np.zeros((2, 3, 5, 4))
    for q, i in enumerate(q_positions):
        for k, j in enumerate(k_positions):
            row = max(-clip, min(clip, j - i)) + clip
            bias[:, :, q, k] = query[:, :, q] @ np.asarray(params["keys"][row]) / math.sqrt(4)
            mixed[:, :, q] += weights[:, :, q, k, None] * np.asarray(params["values"][row])
    positions = jnp.asarray(q_positions)[None], jnp.asarray(k_positions)[None]
    np.testing.assert_allclose(encoding.bias(params, jnp.asarray(query), *positions), bias, atol=1e-5)
    np.testing.assert_allclose(encoding.mix(params, jnp.asarray(weights), *positions), mixed, atol=1e-5)


@pytest.mark.parametrize("name", BIASED)
def test_a_bias_has_heads_queries_and_keys_and_takes_any_positions(name):
    bias = bias_of(name, [0, 5, 2], [0, 1, 5, 9])
    assert np.broadcast_shapes(bias.shape, (2, 3, 3, 4)) == (2, 3, 3, 4)
    swapped = bias_of(name, [0, 5, 2], [9, 1, 5, 0])
    np.testing.assert_allclose(swapped[..., [3, 1, 2, 0]], bias, atol=1e-6)  # positions, not indices


@pytest.mark.parametrize("name", RELATIVE)
def test_a_bias_does_not_change_when_everything_is_shifted(name):
    np.testing.assert_allclose(
        bias_of(name, [1, 4, 9], [0, 3, 9]), bias_of(name, [91, 94, 99], [90, 93, 99]), atol=1e-4
    )


def test_fire_is_its_formula():
    encoding = make_encoding("fire", hidden=5, threshold=9.0)
    params = jax.device_get(encoding.init(jax.random.key(0), SPEC))
    params["hidden_bias"] = np.linspace(-1, 1, 5)
    query = jnp.zeros((1, 3, 1, 4))
    for i, j in ((3, 0), (3, 3), (40, 7)):
        psi = lambda x: math.log(params["c"] * x + 1)  # noqa: E731
        ratio = psi(i - j) / psi(max(9.0 * float(params["threshold"]), i))
        expected = np.maximum(ratio * params["hidden"] + params["hidden_bias"], 0) @ params["out"]
        found = encoding.bias(params, query, jnp.array([[i]]), jnp.array([[j]]))
        np.testing.assert_allclose(found[0, :, 0, 0], expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "form"), [("kerple_log", "log"), ("kerple_power", "power")])
def test_kerple_is_its_formula_and_its_gradients_are_finite(name, form):
    encoding = ENCODINGS[name]
    params = encoding.init(jax.random.key(0), SPEC)
    bias = np.asarray(bias_of(name, [0, 5], [0, 2, 5]))
    for head in range(3):
        r1, r2 = float(params["r1"][head]), float(params["r2"][head])
        for q, i in enumerate((0, 5)):
            for k, j in enumerate((0, 2, 5)):
                expected = -r1 * (math.log(1 + r2 * abs(i - j)) if form == "log" else abs(i - j) ** r2)
                np.testing.assert_allclose(bias[0, head, q, k], expected, rtol=1e-4, atol=1e-6)
    of = jnp.zeros((1, 3, 4, 4)), *[jnp.arange(4)[None]] * 2
    gradient = jax.grad(lambda params: encoding.bias(params, *of).sum())(params)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize(
    ("name", "outside", "end"),
    [
        ("kerple_log", (-0.5, -0.5), (0.01, 0.01)),
        ("kerple_power", (-0.5, 2.5), (0.01, 2.0)),
        ("kerple_power", (1.0, -0.5), (1.0, 0.01)),
    ],
)
def test_numbers_of_kerples_beyond_their_range_are_its_ends_and_can_come_back(name, outside, end):
    encoding, positions, query = ENCODINGS[name], jnp.arange(4)[None], jnp.zeros((1, 3, 4, 4))
    bias = lambda r1, r2: encoding.bias({"r1": r1, "r2": r2}, query, positions, positions)  # noqa: E731
    outside, end = ([jnp.full(3, value) for value in values] for values in (outside, end))
    np.testing.assert_allclose(bias(*outside), bias(*end), rtol=1e-5)
    gradients = jax.grad(lambda *numbers: bias(*numbers).sum(), argnums=(0, 1))(*outside)
    assert all((gradient < 0).all() for gradient in gradients)


def test_without_positions_attention_is_permutation_equivariant(random):
    x = jnp.asarray(random.normal(size=(6, 4)), jnp.float32)
    order = random.permutation(6)
    weights = attention_weights(x, x)
    np.testing.assert_allclose(attention_weights(x[order], x[order]), weights[order][:, order], atol=1e-6)
    encoding = ENCODINGS["none"]
    assert encoding.add is encoding.rotate is encoding.bias is encoding.mix is None
    masked = attention_weights(x, x, mask=causal_mask(6, 6))
    assert np.abs(attention_weights(x[order], x[order], mask=causal_mask(6, 6)) - masked[order][:, order]).max() > 0.01


def test_what_cannot_extrapolate_is_refused_by_name():
    for name, encoding in ENCODINGS.items():
        if name == "learned":
            with pytest.raises(ValueError, match="encoding='learned': has positions for 16 tokens, not for 17"):
                require_room(name, encoding, SPEC, 17)
        else:
            require_room(name, encoding, SPEC, 17)
    learned = ENCODINGS["learned"]
    assert np.isnan(learned.add(learned.init(jax.random.key(0), SPEC), jnp.zeros((1, 1, 12)), jnp.array([[16]]))).all()


def use(name, kind, spec=SPEC):
    require_usable(name, ENCODINGS[name], kind, spec)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: make_encoding("spiral"), "encoding='spiral': choose one of none, sinusoidal, learned"),
        (lambda: make_encoding("randomized_none"), "choose one of"),
        (lambda: make_encoding("alibi", slope=2), "encoding='alibi': has no option 'slope'"),
        (lambda: make_encoding("spiral", key="positions"), "positions='spiral': choose one of none"),
        (lambda: use("alibi", "cross"), "encoding='alibi': is for attention of kind encoder, decoder, not cross"),
        (lambda: use("fire", "encoder"), "encoding='fire': is for attention of kind decoder, not encoder"),
        (lambda: use("rotary", "decoder", SPEC._replace(head_size=5)), "even head_size, not 5"),
        (lambda: rotate(jnp.zeros((2, 5)), jnp.arange(2)), "turns 5 of 5 features, and needs to turn whole pairs"),
        (lambda: rotate(jnp.zeros((2, 4)), jnp.arange(2), fraction=2), "fraction=2: needs more than 0 and at most 1"),
        (lambda: rotate(jnp.zeros((2, 4)), jnp.arange(2), base=-1), "base=-1: needs a number more than 0"),
        (
            lambda: rotate(jnp.zeros((2, 4)), jnp.arange(2), trained_length=9),
            "trained_length=9: set it only with scaling='yarn'",
        ),
        (lambda: make_encoding("randomized_alibi:longest=20.5"), "longest=20.5: needs a whole number"),
        (lambda: make_encoding("randomized_alibi:longest=x"), "encoding='randomized_alibi:longest=x': longest='x'"),
        (lambda: make_encoding("shaw:clip=0"), "encoding='shaw:clip=0': clip=0: needs a number, 1 or more"),
        (lambda: make_encoding("shaw:clip=True"), "clip=True: needs a number, 1 or more"),
        (lambda: make_encoding("fire:threshold=1e400"), "threshold=inf: needs a number, 1 or more"),
        (lambda: make_encoding("t5:num_buckets=2"), "num_buckets=2: needs a number, 4 or more"),
        (lambda: rotate(jnp.zeros((2, 4)), jnp.arange(2), base=math.inf), "base=inf: needs a number more than 0"),
        (
            lambda: require_usable("rotary:factor=a", make_encoding("rotary:factor=a,scaling=ntk"), "decoder", SPEC),
            "encoding='rotary:factor=a': ",
        ),
        (lambda: rotate(jnp.zeros((2, 4)), jnp.arange(2), factor=0.0), "factor=0.0: needs a number more than 0"),
        (lambda: rotate(jnp.zeros((2, 4)), jnp.arange(2), factor=2.0), "factor=2.0: does nothing without a scaling"),
        (lambda: rotate(jnp.zeros((2, 4)), jnp.arange(2), scaling="yarn"), "scaling='yarn': requires trained_length"),
        (lambda: rotate(jnp.zeros((2, 4)), jnp.arange(2), scaling="more"), "scaling='more': choose one of none, inter"),
        (lambda: SCALINGS["yarn_index"](4, 1.0, 2.0, 8), "base=1.0: scaling='yarn_index' needs more than 1"),
    ],
)
def test_what_is_not_defined_is_refused_with_where_it_is(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("name", ENCODINGS)
def test_every_encoding_is_jitted_mapped_and_differentiated(name):
    encoding = ENCODINGS[name]
    params = encoding.init(jax.random.key(0), SPEC)
    positions = jnp.arange(4)[None]

    def use(params, x):  # [B, T, D]
        x = x if encoding.add is None else encoding.add(params, x, positions)
        heads = jnp.moveaxis(x.reshape(*x.shape[:-1], 3, 4), -2, -3)
        heads = heads if encoding.rotate is None else encoding.rotate(params, heads, positions[..., None, :])
        bias = None if encoding.bias is None else encoding.bias(params, heads, positions, positions)
        weights = attention_weights(heads, heads, bias=bias)
        return sum(
            jnp.sum(part**2)
            for part in (weights, 0 if encoding.mix is None else encoding.mix(params, weights, positions, positions))
        )

    x = jax.random.normal(jax.random.key(1), (2, 4, 12))
    gradients = jax.jit(jax.vmap(jax.grad(use, argnums=(0, 1)), in_axes=(None, 0)))(params, x[:, None])
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients))
