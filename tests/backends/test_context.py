"""Texts whose tokens lie over devices, as many as there are: exact, balanced, and never all pairs at once."""

import contextlib
import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax import backends
from attention_jax.backends import folding
from attention_jax.backends.context import routes
from attention_jax.ops.attention import Relative
from attention_jax.ops.dropout import Dropout
from attention_jax.ops.encoding import Spec
from attention_jax.ops.masking import causal_mask, combine, segment_mask, valid_lens_mask, window_mask, with_axes
from attention_jax.ops.patterns import big_bird
from attention_jax.ops.positions import make_encoding
from attention_jax.training.placement import MESH, make_mesh

DEVICES = len(jax.devices())
BATCH, HEADS, SIZE, QUERIES = 2, 2, 4, 19  # queries that no number of devices divides
NAMES = ("ring", "gathered")
BLOCKS = ":queries=2,keys=2"
SEGMENTS = jnp.arange(QUERIES)[None] // jnp.array([[7], [4]])


class Case(dict):
    """Keywords of `attend`, the number of keys, and the position encoding."""

    def __init__(self, keys=QUERIES, encoding="none", **asked):
        super().__init__(asked)
        self.keys, self.encoding = keys, encoding


CAUSAL = causal_mask(QUERIES, QUERIES)
PLACES = jnp.arange(QUERIES)
CASES = {
    "all": Case(),
    "lengths, score": Case(
        keys=11,
        mask=with_axes(valid_lens_mask(jnp.array([11, 3]), 11), 1),
        score="bilinear",
        score_params=(jnp.arange(16.0).reshape(4, 4) / 16 - 0.4,),
    ),
    "nothing": Case(mask=with_axes(valid_lens_mask(jnp.array([QUERIES, 0]), QUERIES), 1)),
    "window, sigmoid": Case(
        mask=combine(CAUSAL, window_mask(QUERIES, QUERIES, 3)), encoding="alibi", normalize="sigmoid"
    ),
    "segments, sink": Case(
        mask=with_axes(combine(CAUSAL, segment_mask(SEGMENTS, SEGMENTS)), 1),
        encoding="t5",
        normalize="learned_sink",
        normalizer_params=(jnp.array([0.5, -1.0])[:, None, None],),
    ),
    "pattern": Case(mask=combine(CAUSAL, big_bird(PLACES, PLACES, block=2, window=0))),
    "causal": Case(mask=CAUSAL, encoding="shaw:clip=3"),
    "dropout": Case(mask=CAUSAL, encoding="t5", dropout=Dropout(jax.random.key(4), 0.3)),
}


def mesh(**sizes):
    return make_mesh({**MESH, "data": 1, **(sizes or {"context": DEVICES})})


def arrays(case):
    shapes = [(BATCH, HEADS, length, SIZE) for length in (QUERIES, case.keys, case.keys)]
    params = make_encoding(case.encoding).init(jax.random.key(5), Spec(SIZE * HEADS, HEADS, SIZE, 64, True))
    learned = params, case.get("normalizer_params", ()), case.get("score_params", ())
    return *(jax.random.normal(jax.random.key(n), shape) for n, shape in enumerate(shapes)), learned


def attended(name, case, query, key, value, learned):
    record, (params, sinks, scores) = make_encoding(case.encoding), learned
    positions = jnp.arange(query.shape[-2])[None], jnp.arange(key.shape[-2])[None]
    relative = Relative(record.bias, None, record.mix, params, *positions)
    asked = {**case, "relative": relative, "normalizer_params": sinks, "score_params": scores}
    return backends.attend(name, query, key, value, **asked).values


def with_gradients(name, case, *given):
    """The values, and the gradients of queries, keys, values and all that is learned."""

    @jax.jit
    def both(*given):
        out, pull = jax.vjp(functools.partial(attended, name, case), *given)
        return out, *pull(jnp.cos(out))

    return both(*given)


@pytest.mark.parametrize("case", CASES)
def test_values_and_all_gradients_are_those_of_the_reference(case):
    case = CASES[case]
    given = arrays(case)
    wanted = with_gradients("reference", case, *given)
    for name in NAMES:
        with jax.set_mesh(mesh()):
            found = with_gradients(name + BLOCKS, case, *given)
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), found, wanted)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("axis", ["data", "tensor"])
def test_rows_and_heads_may_lie_over_other_axes(name, axis):
    case = CASES["dropout"]
    given = arrays(case)
    with jax.set_mesh(mesh(context=DEVICES // 2, **{axis: 2})):
        found = with_gradients(name + BLOCKS, case, *given)
    wanted = with_gradients("reference", case, *given)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-5), found, wanted)


@pytest.mark.parametrize("name", NAMES)
def test_members_side_by_side_have_texts_over_devices_too(name):
    case = CASES["causal"]
    given = jax.tree.map(lambda x: jnp.stack([x, x + 1]), arrays(case))
    run = jax.vmap(functools.partial(attended, name + BLOCKS, case), spmd_axis_name="population")
    with jax.set_mesh(mesh()):
        found = jax.jit(run)(*given)
    for member in range(2):
        alone = attended("reference", case, *jax.tree.map(lambda x, m=member: x[m], given))
        np.testing.assert_allclose(found[member], alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_without_a_mesh_or_on_one_device_they_are_chunked_bit_by_bit(name):
    case = CASES["dropout"]
    given = arrays(case)
    for own in (None, make_mesh(MESH, devices=jax.devices()[:1])):
        programs = []
        for backend in (name, "chunked"):
            with jax.set_mesh(own) if own else contextlib.nullcontext():
                programs.append(jax.jit(functools.partial(attended, backend, case)).lower(*given).as_text())
        assert programs[0] == programs[1]


def blocks_read(monkeypatch, name, mask):
    """How many blocks of keys each query reads, forward and in the gradient, and how many of queries read each key."""

    def count(job, block, keys, scores, allowed, peak):
        return jnp.zeros_like(peak), jnp.ones((*scores.shape[:-1], keys.value.shape[-1]))

    monkeypatch.setattr(folding, "_shares", count)
    monkeypatch.setattr(folding, "_pulled", lambda *given: jax.tree.map(lambda total: total + 1, given[-1]))
    # sigmoid adds up without dividing
    run = lambda *x: backends.attend(name, *x, mask=mask, normalize="sigmoid").values  # noqa: E731

    @jax.jit
    def both(x):
        values, pull = jax.vjp(run, x, x, x)
        return values, *pull(jnp.ones_like(values))

    with jax.set_mesh(mesh()):
        found = both(jnp.ones((1, mask.num_keys, 1)))
    return [np.array(each)[0, :, 0] for each in found]


PARTS, BLOCK = 2 * DEVICES, 3
LENGTH = 2 * PARTS * BLOCK  # two blocks a part


@pytest.mark.parametrize("name", ["chunked", *NAMES])
@pytest.mark.parametrize("reach", [LENGTH, 4])
def test_pairs_of_blocks_that_the_mask_empties_are_skipped_and_others_read_once(monkeypatch, name, reach):
    mask = combine(causal_mask(LENGTH, LENGTH), window_mask(LENGTH, LENGTH, reach))
    blocks = np.array(mask.block(*[jnp.arange(LENGTH)] * 2)).reshape(*[LENGTH // BLOCK, BLOCK] * 2).any(axis=(1, 3))
    values, of_query, *of_keys = blocks_read(monkeypatch, f"{name}:queries=3,keys=3", mask)
    for found in (values, of_query):
        np.testing.assert_array_equal(found, np.repeat(blocks.sum(axis=1), BLOCK))
    for found in of_keys:
        np.testing.assert_array_equal(found, np.repeat(blocks.sum(axis=0), BLOCK))


@pytest.mark.parametrize("devices", [2, 4, 8])
def test_causal_work_is_the_same_on_all_devices_in_every_round(devices):
    held = [
        {2 * start + half for half in range(2) for start, to in routes(devices)[half] if to == device}
        for device in range(devices)
    ]
    assert sorted(part for parts in held for part in parts) == list(range(2 * devices))
    for turn in range(devices):
        work = [
            sum(
                1 if key < query else 0.5 if key == query else 0
                for query in held[device]
                for key in held[(device - turn) % devices]
            )
            for device in range(devices)
        ]
        assert work == [2] * devices


@pytest.mark.parametrize(
    ("name", "sends", "sends_no"),
    [("ring", "collective-permute", "all-gather"), ("gathered", "all-gather", "all-to-all")],
)
def test_a_ring_never_has_all_keys_and_nobody_has_all_pairs(name, sends, sends_no):
    length = 512
    x = jax.ShapeDtypeStruct((1, length, SIZE), jnp.float32)
    run = lambda x: backends.attend(  # noqa: E731
        f"{name}:queries=16,keys=16", x, x, x, mask=causal_mask(length, length)
    ).values.sum()
    with jax.set_mesh(mesh()):
        place = jax.sharding.NamedSharding(mesh(), jax.sharding.PartitionSpec(None, "context"))
        text = jax.jit(jax.grad(run), in_shardings=place, out_shardings=place).lower(x).compile().as_text()
    largest = max(math.prod(map(int, sizes.split(","))) for sizes in re.findall(r"f32\[([\d,]+)\]", text))
    assert f" {sends}(" in text
    assert f" {sends_no}(" not in text
    assert largest <= length * SIZE // (DEVICES if name == "ring" else 1)
