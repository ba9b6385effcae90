"""Kernels, interpreted: their blocks and ways, what they skip, draw and sum, and for which devices they are lowered."""

import contextlib
import functools
import importlib.util
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import ROOT

from attention_jax import backends
from attention_jax.backends.flex import walks
from attention_jax.backends.flex.inputs import Asked, Bias, bias_of, prepared
from attention_jax.backends.flex.walks import EMPTY, EVEN, FULL, PARTIAL
from attention_jax.errors import UserError
from attention_jax.ops.attention import Relative
from attention_jax.ops.dropout import Dropout
from attention_jax.ops.encoding import Spec
from attention_jax.ops.masking import (
    causal_mask,
    combine,
    keys_mask,
    materialize,
    prefix_mask,
    segment_mask,
    valid_lens_mask,
    window_mask,
    with_axes,
)
from attention_jax.ops.pooling import attention_of
from attention_jax.ops.positions import make_encoding
from attention_jax.ops.scoring import dot

SMALL = "flex:queries=4,keys=3"


def arrays(queries=6, keys=7, batch=(2, 3), size=4):
    shapes = ((*batch, length, size) for length in (queries, keys, keys))
    return [jax.random.normal(jax.random.key(n), shape) for n, shape in enumerate(shapes)]


def relative_of(encoding, length, heads=3):
    """The encoding's parts, for positions 0 … length − 1."""
    record, positions = make_encoding(encoding), jnp.arange(length)[None]
    params = record.init(jax.random.key(5), Spec(8, heads, 4, 32, True))
    return Relative(record.bias, None, record.mix, params, positions, positions, record.pairs)


def with_gradients(backend, given, params=(), **asked):
    """The values, and the gradients of what they weigh, by query, key, value and the bias's parameters."""

    def read(params, query, key, value):
        more = {**asked, "relative": asked["relative"]._replace(params=params)} if "relative" in asked else asked
        return backends.attend(backend, query, key, value, **more).values

    @jax.jit
    def both(*arguments):
        out, pull = jax.vjp(read, *arguments)
        return out, *pull(jnp.cos(jnp.arange(out.size, dtype=out.dtype).reshape(out.shape)))

    return jax.tree.leaves(both(params, *given))


def assert_close(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 5), (7, 3), (128, 128)])
def test_any_block_size_and_any_length_give_the_same(queries, keys):
    mask = combine(causal_mask(6, 7, 1), with_axes(valid_lens_mask(jnp.array([7, 0]), 7), 1))
    name = f"flex:queries={queries},keys={keys}"
    found, wanted = (with_gradients(backend, arrays(), mask=mask) for backend in (name, "reference"))
    assert_close(found, wanted)
    np.testing.assert_array_equal(found[0][1], 0)  # nothing to attend to


@pytest.mark.parametrize("encoding", ["t5", "kerple_power"])
def test_a_loop_inside_the_kernel_gives_what_the_grid_gives(encoding, monkeypatch):
    asked = {"relative": relative_of(encoding, 6), "mask": window_mask(6, 6, 3), "normalize": "softcap:cap=2"}
    asked |= {"dropout": Dropout(jax.random.key(1), 0.3)}
    run = functools.partial(with_gradients, SMALL, arrays(6, 6), asked["relative"].params, **asked)
    on_grid = run()
    monkeypatch.setitem(walks.WAYS, "cpu", functools.partial(walks._in_loop, is_interpreted=True))
    assert_close(run(), on_grid)


@pytest.mark.parametrize("normalize", ["softmax", "sink", "softcap"])
def test_a_query_that_may_attend_to_nothing_gets_zeros_and_no_gradient(normalize):
    mask = with_axes(valid_lens_mask(jnp.array([[7, 0, 3, 0, 1, 7], [0] * 6]), 7, per_query=True), 1)
    is_empty = np.array([[0, 1, 0, 1, 0, 0], [1] * 6], bool)
    found, wanted = (with_gradients(name, arrays(), mask=mask, normalize=normalize) for name in (SMALL, "reference"))
    assert_close(found, wanted)
    for of_queries in found[:2]:
        np.testing.assert_array_equal(np.moveaxis(of_queries, 1, 2)[is_empty], 0)
    for of_keys in found[2:]:
        np.testing.assert_array_equal(of_keys[1], 0)


@pytest.mark.parametrize(("queries", "keys"), [(0, 7), (6, 0)])
def test_without_keys_values_are_zeros_and_without_queries_there_are_none(queries, keys):
    given = arrays(queries, keys)
    values, *gradients = with_gradients(SMALL, given)
    np.testing.assert_array_equal(values, np.zeros((2, 3, queries, 4)))
    assert all(not gradient.any() and gradient.shape == a.shape for gradient, a in zip(gradients, given, strict=True))


def test_two_runs_give_the_same_bits():
    asked = {"relative": relative_of("t5", 7), "dropout": Dropout(jax.random.key(1), 0.3)}
    one, other = (with_gradients(SMALL, arrays(7, 7), asked["relative"].params, **asked) for _ in range(2))
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_dropout_drops_the_weights_that_the_reference_drops(batch):
    query, key, _ = arrays(6, 7, batch)
    value = jnp.broadcast_to(jnp.eye(7), (*batch, 7, 7))  # what is pooled are the weights
    dropout = Dropout(jax.random.key(1), 0.5, row=3)
    attend = jax.jit(lambda name: backends.attend(name, query, key, value, dropout=dropout).values, static_argnums=0)
    found, wanted = map(attend, (SMALL, "reference"))
    np.testing.assert_array_equal(found == 0, wanted == 0)
    assert 0.2 < np.mean(found == 0) < 0.8


def test_a_block_that_is_empty_is_not_computed_with():
    query, key, value = arrays(8, 9, (2,))
    far = jnp.arange(9)[:, None] >= 6  # queries see keys 0 … 5 alone: the last blocks of 2 and of 3 are empty
    mask = combine(causal_mask(8, 9), valid_lens_mask(jnp.array([6, 6]), 9))
    spoiled = query, jnp.where(far, jnp.nan, key), jnp.where(far, jnp.nan, value)
    found = with_gradients("flex:queries=2,keys=3", spoiled, mask=mask)
    wanted = with_gradients("reference", (query, key, value), mask=mask)
    assert_close(found, wanted)
    assert all(not gradient[:, 6:].any() for gradient in found[2:])


Q, K = 24, 30
LENGTHS = jnp.array([0, 11, 30])
SEGMENTS = jnp.repeat(jnp.arange(7), 5)
EXACT = {
    "causal": causal_mask(Q, K, 3),
    "causal_each": causal_mask(Q, K, LENGTHS),
    "lengths": valid_lens_mask(LENGTHS, K),
    "lengths_each": valid_lens_mask(jnp.arange(3 * Q).reshape(3, Q) % K, K, per_query=True),
    "window": window_mask(Q, K, 6, LENGTHS),
    "segments": segment_mask(SEGMENTS[None, :Q], SEGMENTS[None, :K]),
    "keys": keys_mask(jnp.arange(K) > 8),
}
SAFE = EXACT | {
    "prefix": prefix_mask(Q, K, LENGTHS, 1),
    "both": combine(causal_mask(Q, K), window_mask(Q, K, 3)),
    "shuffled": segment_mask(SEGMENTS[None, ::3][:, :1].repeat(Q, 1), jnp.roll(SEGMENTS, 7)[None, :K]),
    "not_a_number": combine(valid_lens_mask(jnp.array([jnp.nan, 20.0, 9.5]), K), causal_mask(Q, K)),
}


@pytest.mark.parametrize("name", SAFE)
def test_blocks_that_are_called_full_or_empty_are(name):
    query, key, value = arrays(Q, K, (3,))
    asked = Asked(dot, 1.0, lambda scores: scores, Bias(), SAFE[name], None)
    kinds = np.broadcast_to(prepared(query, key, value, asked, (2, 6))[1].kinds, (3, 12, 5))
    whole = np.broadcast_to(materialize(SAFE[name]), (3, Q, K)).reshape(3, 12, 2, 5, 6)
    every, some = whole.all((2, 4)), whole.any((2, 4))
    assert every[kinds == FULL].all()
    assert not some[kinds == EMPTY].any()
    if name in EXACT:
        np.testing.assert_array_equal(kinds, np.where(every, FULL, np.where(some, PARTIAL, EMPTY)))


@pytest.mark.parametrize("both_ways", [True, False])
def test_a_block_that_is_called_even_has_one_bias(both_ways):
    record, length, heads = make_encoding(f"t5:bidirectional={both_ways},num_buckets=8,max_distance=12"), 48, 3
    params, positions = record.init(jax.random.key(5), Spec(8, heads, 4, 32, True)), (jnp.arange(length) * 7 % 80)[None]
    relative = Relative(record.bias, None, record.mix, params, positions, positions, record.pairs)
    query, key, value = arrays(length, length)
    asked = Asked(dot, 1.0, lambda scores: scores, bias_of(query, relative), None, None)
    kinds = np.asarray(prepared(query, key, value, asked, (2, 3))[1].kinds)[0, 0]
    bias = np.asarray(record.bias(params, query, positions, positions)).reshape(-1, heads, 24, 2, 16, 3)[0]
    ((_, table),) = params.items()
    assert (kinds >= EVEN).sum() > 10
    for row, column in zip(*np.nonzero(kinds >= EVEN), strict=True):
        wanted = table[kinds[row, column] - EVEN]
        np.testing.assert_array_equal(bias[:, row, :, column], np.broadcast_to(wanted[:, None, None], (heads, 2, 3)))


def largest(program):
    """The most numbers that an array of a program has; those of the programs inside of it count."""
    sizes = [variable.aval.size for equation in program.eqns for variable in equation.outvars]
    inside = jax.tree.leaves([equation.params for equation in program.eqns], is_leaf=lambda x: hasattr(x, "jaxpr"))
    inside = [getattr(leaf, "jaxpr", leaf) for leaf in inside]
    return max([*sizes, *(largest(leaf) for leaf in inside if hasattr(leaf, "eqns"))], default=0)


@pytest.mark.parametrize("backend", ["flex:queries=32,keys=32", "reference"])
def test_no_array_of_all_pairs_is_made_forward_or_in_gradients(backend):
    length, size = 512, 4
    asked = {"relative": relative_of("t5", length, 1), "dropout": Dropout(jax.random.key(1), 0.3)}
    run = functools.partial(with_gradients, backend, mask=causal_mask(length, length), **asked)
    program = jax.make_jaxpr(lambda *given: run(given, asked["relative"].params))(*arrays(length, length, (1,), size))
    assert (largest(program.jaxpr) >= length**2) == (backend == "reference")


def test_a_population_is_its_members():
    given = arrays(5, 6, (2, 3, 1))
    keys, offsets = jax.random.split(jax.random.key(2)), jnp.array([0, 2])
    params = jax.vmap(lambda key: make_encoding("t5").init(key, Spec(8, 3, 4, 32, True)))(keys)

    def member(params, key, offset, *given):
        relative = relative_of("t5", 6)._replace(params=params, queries=jnp.arange(5)[None])
        given = [array.swapaxes(0, 1) for array in given]
        asked = {"mask": causal_mask(5, 6, offset), "dropout": Dropout(key, 0.3), "relative": relative}
        out, pull = jax.vjp(lambda *a: backends.attend(SMALL, *a, **asked).values, *given)
        return out, *pull(out)

    together = jax.jit(jax.vmap(member))(params, keys, offsets, *given)
    for number in range(2):
        alone = jax.jit(member)(*jax.tree.map(lambda a, n=number: a[n], (params, keys, offsets, *given)))
        assert_close([array[number] for array in together], alone)


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"normalize": "sigmoid"}, "this normalizer is no softmax"),
        ({"score": "additive"}, "a score with parameters for every pair does not fit into a kernel"),
        ({"relative": relative_of("shaw", 6)}, "this encoding's bias reads more of a query than its position"),
        ({"relative": Relative(mix=lambda *a: 0)}, "it adds nothing beside the values"),
        ({"relative": Relative(falloff=lambda *a: 1)}, "it has no falloff of weights"),
        ({"with_weights": True}, "it never makes all weights"),
        ({"bias": jnp.zeros((6, 7))}, "a bias that is an array is as large as the weights"),
    ],
)
def test_what_kernels_cannot_do_is_refused(asked, reason):
    with pytest.raises(ValueError, match=rf"backend='flex': {reason}.*\. Choose backend='reference'"):
        backends.attend("flex", *arrays(), **asked)


def test_a_mask_or_values_that_do_not_fit_are_refused():
    query, key, value = arrays()
    with pytest.raises(ValueError, match=r"mask \(.*5\) does not broadcast"):
        backends.attend("flex", query, key, value, mask=causal_mask(3, 5))
    with pytest.raises(ValueError, match=r"value's batch axes \(2, 3\) does not broadcast to the weights' batch axes"):
        backends.attend("flex", query[:, :1], key[:, :1], value)


def program_of(encoding, size, length=256):
    """Causal attention with dropout and its gradients, in bfloat16: a function, and the shapes that it takes."""
    relative = relative_of(encoding, length, 4)

    def both(params, query, key, value):
        asked = {"relative": relative._replace(params=params), "dropout": Dropout(jax.random.key(1), 0.1)}
        read = lambda *a: backends.attend("flex", *a, mask=causal_mask(length, length), **asked).values  # noqa: E731
        out, pull = jax.vjp(read, query, key, value)
        return out, pull(out)

    shapes = [jax.ShapeDtypeStruct((2, heads, length, size), jnp.bfloat16) for heads in (4, 1, 1)]
    return jax.jit(both), (relative.params, *shapes)


DEVICES = [(encoding, size) for encoding in ("alibi", "t5") for size in (64, 128)]
FOR_TPU = """
import sys
sys.path[:0] = ["tests"]
from attention_jax.training.topology import devices_of
device = devices_of("v5e:2x2")[0]
import jax
from backends.test_flex import DEVICES, program_of
from jax.sharding import SingleDeviceSharding

def put(array):
    return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=SingleDeviceSharding(device))

for encoding, size in DEVICES:
    function, shapes = program_of(encoding, size)
    text = function.lower(*jax.tree.map(put, shapes)).compile().as_text()
    assert text.count('custom_call_target="tpu_custom_call"') == 3
"""


def test_forward_and_gradients_compile_for_a_tpu():
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("no libtpu: pip install libtpu")
    subprocess.run([sys.executable, "-c", FOR_TPU], check=True, cwd=ROOT)


@pytest.mark.parametrize(("encoding", "size"), DEVICES)
def test_forward_and_gradients_are_lowered_for_a_gpu(encoding, size):
    function, shapes = program_of(encoding, size)
    with h100s():
        text = function.trace(*shapes).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("xla.gpu.triton") == 3


@pytest.mark.parametrize(
    ("size", "devices", "reason"),
    [
        (24, 1, "on a GPU its heads have a power of 2 of features"),
        (32, 2, "its kernels are for one device, and the mesh has 2"),
        (32, 1, ""),
    ],
)
def test_what_its_devices_cannot_do_is_refused_before_a_program_is_made(size, devices, reason):
    with h100s(devices) as mesh:
        if mesh is None:
            pytest.skip("this JAX knows no devices that are not here")
        assert backends.make_backend("flex").refusal(attention_of(), backends.Call(features=size)) == reason


def test_a_program_with_its_kernels_has_their_mark_and_one_without_them_fails():
    compiled = lambda name: jax.jit(lambda *a: backends.attend(name, *a).values).lower(*arrays()).compile()  # noqa: E731
    backends.require_mark("flex", compiled(SMALL))
    with pytest.raises(UserError, match=r"^backend='flex': the compiled program has no call of it \(flex_queries\)"):
        backends.require_mark("flex", compiled("reference"))


@contextlib.contextmanager
def h100s(count=1):
    """The devices that programs are lowered for, where JAX wants to know any (from 0.11)."""
    try:
        from jax.sharding import AbstractDevice
    except ImportError:
        yield None
        return
    device = AbstractDevice(device_kind="NVIDIA H100", num_cores=None, platform="gpu")
    mesh = jax.sharding.AbstractMesh((count,), ("all",), (jax.sharding.AxisType.Auto,), abstract_device=device)
    with jax.sharding.use_abstract_mesh(mesh):
        yield mesh
