"""Kernels that others ship: they equal the oracle and the reference, refuse the rest by name, and leave a mark."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from backends.conformance import Cell, verdict
from support import ROOT, compiled, drawn

from attention_jax import backends
from attention_jax.backends import Call, fused
from attention_jax.models.language_model import LanguageModel
from attention_jax.ops.attention import Attention
from attention_jax.ops.masking import (
    causal_mask,
    combine,
    keys_mask,
    segment_mask,
    valid_lens_mask,
    window_mask,
    with_axes,
)
from attention_jax.training.cost import flops
from attention_jax.training.placement import MESH, make_mesh
from attention_jax.training.topology import devices_of, programs_for
from configs.language_model import get_config
from experiments.language_model import describe

KERNELS = ("cudnn", "triton", "flash", "splash", "tokamax")
BLOCKS = ":queries=128,keys=128,interpret=True"
PLAIN = Cell("scaled_dot", "softmax", "causal", "rotary", 0.0, "float32", "splash:interpret=True", "plain")


@pytest.mark.parametrize(
    "cell",
    [
        PLAIN._replace(mask="window"),
        PLAIN._replace(score="dot", mask="lengths", dtype="bfloat16"),
        PLAIN._replace(backend="flash:interpret=True", mode="packed"),
        PLAIN._replace(backend="triton:interpret=True", mode="vmapped"),
    ],
    ids=lambda cell: "-".join(map(str, cell)),
)
def test_a_kernel_is_the_float64_oracle_forward_and_by_every_gradient(cell):
    assert verdict(cell) == ""


def segments(length):
    """Of two packed rows; the first ends in padding, which is segment 0."""
    return jnp.array([[(1 + i // 70) * (i < length - 9) for i in range(length)], [i // 100 for i in range(length)]])


def lengths(length):
    """Of two texts, the second of which is empty."""
    return jnp.array([length - 40, 0])


MASKS = {
    "none": lambda q, k: None,
    "causal": causal_mask,
    "lengths": lambda q, k: with_axes(valid_lens_mask(lengths(k), k), 2),
    "lengths of more": lambda q, k: with_axes(valid_lens_mask(jnp.array([k + 5, 0]), k), 2),
    "causal lengths": lambda q, k: with_axes(combine(causal_mask(q, k), valid_lens_mask(lengths(k), k)), 2),
    "packed": lambda q, k: with_axes(
        combine(causal_mask(q, k), segment_mask(segments(q), segments(k)), keys_mask(segments(k) > 0)), 2
    ),
    "window": lambda q, k: window_mask(q, k, 50),
    "causal window": lambda q, k: combine(causal_mask(q, k), window_mask(q, k, 50), window_mask(q, k, 70)),
}


def computed(backend, mask, queries, keys, dtype=jnp.float32, heads=(2, 2, 1)):
    """Values and gradients, of two texts with two heads of keys, each for two of queries."""
    shapes = ((*heads[:2], 2, queries, 8), (*heads, keys, 8), (*heads, keys, 8))
    arrays = [jax.random.normal(jax.random.key(n), shape).astype(dtype) for n, shape in enumerate(shapes)]

    @jax.jit
    def both(*arrays):
        out, pull = jax.vjp(lambda *a: backends.attend(backend, *a, mask=MASKS[mask](queries, keys)).values, *arrays)
        return out, *pull(jnp.cos(jnp.arange(out.size)).reshape(out.shape).astype(out.dtype))

    return [np.asarray(array, np.float32) for array in both(*arrays)]


def assert_reference(backend, mask, queries, keys, dtype=jnp.float32):
    found, wanted = (computed(name, mask, queries, keys, dtype) for name in (backend, "reference"))
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=0.1 if dtype == jnp.bfloat16 else 2e-5)
    if "lengths" in mask:  # the second text is empty
        for one in found:
            np.testing.assert_array_equal(one[1], 0)


@pytest.mark.parametrize(
    ("backend", "mask", "queries", "keys"),
    [
        ("splash" + BLOCKS, "packed", 300, 300),
        ("splash" + BLOCKS, "causal window", 300, 300),
        ("splash" + BLOCKS, "causal lengths", 130, 260),
        ("flash" + BLOCKS, "packed", 300, 300),
        ("flash" + BLOCKS, "lengths", 140, 70),
        ("triton:interpret=True", "none", 150, 150),
    ],
)
def test_texts_of_several_blocks_and_of_none_are_as_in_the_reference(backend, mask, queries, keys):
    assert_reference(backend, mask, queries, keys)


@pytest.fixture
def cudnn_by_xla(monkeypatch):
    """cuDNN's way with what is asked, computed by XLA: everything but the kernel itself."""
    upstream = jax.nn.dot_product_attention
    monkeypatch.setattr(jax.nn, "dot_product_attention", lambda *a, **o: upstream(*a, **o | {"implementation": "xla"}))
    monkeypatch.setattr(fused, "platform", lambda: "gpu")


@pytest.mark.parametrize("mask", ["none", "causal", "lengths", "lengths of more", "causal lengths", "causal window"])
def test_what_cudnn_is_asked_for_is_what_the_reference_computes(mask, cudnn_by_xla):
    with jax.numpy_rank_promotion("allow"):  # JAX's own
        assert_reference("cudnn", mask, 60, 60, jnp.bfloat16)


@pytest.mark.parametrize(
    ("queries", "keys"),
    [((), ()), ((3,), (3,)), ((3, 4), (3, 4)), ((3, 4), (3, 1)), ((3, 2, 2), ()), ((2, 3, 2, 2),) * 2],
)
def test_any_batch_axes_are_as_in_the_reference(queries, keys, cudnn_by_xla):
    query = jax.random.normal(jax.random.key(0), (*queries, 5, 8)).astype(jnp.bfloat16)
    key, value = (jax.random.normal(jax.random.key(n), (*keys, 7, 8)).astype(jnp.bfloat16) for n in (1, 2))
    own = valid_lens_mask(jnp.arange(3)[(None,) * (len(queries) - 3)], 7) if queries else None
    mask = own and with_axes(own, max(len(queries) - 1 - (len(queries) > 3), 0))
    with jax.numpy_rank_promotion("allow"):  # JAX's own
        found, wanted = (
            np.asarray(
                jax.jit(functools.partial(backends.attend, name))(query, key, value, mask=mask).values, np.float32
            )
            for name in ("cudnn", "reference")
        )
    np.testing.assert_allclose(found, wanted, atol=0.05)


@pytest.mark.parametrize("mask", ["none", "causal", "lengths", "causal lengths", "window", "causal window"])
def test_what_tokamax_is_asked_for_is_what_the_reference_computes(mask):
    pytest.importorskip("tokamax", reason="is an extra: pip install attention_jax[tokamax]")
    with jax.numpy_rank_promotion("allow"):  # its own
        assert_reference("tokamax:implementation=xla", mask, 60, 60)


def test_cudnn_is_refused_under_vmap(cudnn_by_xla):
    x = jnp.ones((3, 2, 8, 8), jnp.bfloat16)
    attend = lambda x: backends.attend("cudnn", x, x, x).values.astype(jnp.float32).sum()  # noqa: E731
    for function in (jax.vmap(attend), jax.vmap(jax.grad(attend)), jax.grad(lambda x: jax.vmap(attend)(x).sum())):
        with pytest.raises(ValueError, match=r"backend='cudnn': it has no vmap\. Train .*population\.how=loop"):
            jax.eval_shape(function, x)


def on_gpu(monkeypatch):
    from jax._src.cudnn import fused_attention_stablehlo as upstream

    monkeypatch.setattr(upstream, "check_cudnn_version", lambda: 91000)
    monkeypatch.setattr(upstream, "check_compute_capability", lambda capability: True)
    monkeypatch.setattr(upstream, "is_cuda_compute_capability_equal", lambda capability: False)
    device = jax.sharding.AbstractDevice("NVIDIA H100 80GB HBM3", 132, "gpu")
    return jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), (), (), abstract_device=device))


def gradient_of(name, mask):
    attend = lambda q, k, v: backends.attend(name, q, k, v, mask=mask()).values.astype(jnp.float32).sum()  # noqa: E731
    return jax.jit(jax.value_and_grad(attend, (0, 1, 2)))


def packed_mask():
    packed = jnp.array([[1] * 200 + [2] * 50 + [0] * 50] * 4)
    return with_axes(combine(causal_mask(300, 300), segment_mask(packed, packed), keys_mask(packed > 0)), 2)


@pytest.mark.parametrize(
    ("name", "mask"),
    [
        ("cudnn", causal_mask(200, 200)),
        ("cudnn", combine(causal_mask(200, 200), window_mask(200, 200, 9))),
        ("cudnn", with_axes(combine(causal_mask(200, 200), valid_lens_mask(jnp.array([3, 0]), 200)), 2)),
        ("triton", causal_mask(200, 200)),
        ("triton", None),
        ("tokamax", causal_mask(200, 200)),
    ],
)
def test_a_program_for_a_gpu_has_the_mark_of_its_kernel_and_of_its_gradient(name, mask, monkeypatch):
    if name == "tokamax":
        config = pytest.importorskip("tokamax.config", reason="is an extra: pip install attention_jax[tokamax]")
        monkeypatch.setattr(type(config.cross_compile), "value", True)
    query, key = (jax.ShapeDtypeStruct((2, 2, heads, 200, 64), jnp.bfloat16) for heads in (2, 1))
    with on_gpu(monkeypatch), jax.numpy_rank_promotion("allow"):  # tokamax's own
        lowered = gradient_of(name, lambda: mask).trace(query, key, key).lower(lowering_platforms=("cuda",))
    backends.require_mark(name, lowered)
    assert ("__cudnn$fmhaSoftmaxBackward" in lowered.as_text()) == (name == "cudnn")


@pytest.mark.parametrize("name", ["flash", "splash:queries=256,keys=128"])
@pytest.mark.parametrize("size", [64, 80])
def test_a_program_for_a_slice_of_tpus_has_the_mark_of_its_kernel_and_no_device_asks_another(name, size):
    pytest.importorskip("libtpu", reason="compiles for TPUs: pip install attention_jax[compile]")
    devices = devices_of("v5e:2x4")
    with programs_for(devices):
        assert backends.choose("cudnn/splash/chunked", [Attention()], Call("bfloat16")) == "splash"
    mesh = make_mesh({**MESH, "data": 2, "fsdp": 2, "tensor": 2}, devices=devices)
    placed = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(("data", "fsdp"), "tensor"))
    query, key = (jax.ShapeDtypeStruct((4, 2, n, 300, size), jnp.bfloat16, sharding=placed) for n in (2, 1))
    with jax.set_mesh(mesh):
        program = gradient_of(name, packed_mask).lower(query, key, key).compile()
    backends.require_mark(name, program)
    assert program.as_text().count('custom_call_target="tpu_custom_call"') == 3
    assert "all-gather" not in program.as_text()


def test_devices_compute_rows_and_heads_of_their_own():
    alone = computed("splash:interpret=True", "packed", 20, 20)
    for axis in ("data", "tensor"):
        with jax.set_mesh(make_mesh({**MESH, "data": 1, axis: 2}, devices=jax.devices()[:2])):
            for one, other in zip(computed("splash:interpret=True", "packed", 20, 20), alone, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


FIELDS = {
    **{"vocabulary": 5, "layers": 1, "positions": "rotary", "max_length": 8, "is_tied": True},
    **{"width": 8, "heads": 2, "kv_heads": 1, "qk_norm": False, "feed_forward": 8, "activation": "relu"},
    **{"gated": False, "norm": "rms", "norm_first": True, "dropout_sites": (), "reach": 2},
}


def test_a_cache_is_read_by_a_backend_that_can_where_a_kernel_reads_whole_texts():
    assert backends.of_caches("splash/chunked") == "auto"
    assert backends.of_caches("chunked:keys=4/auto") == "chunked:keys=4/auto"
    model = LanguageModel.of(**FIELDS, backend="splash:interpret=True")
    tokens = jnp.array([[1, 2, 3], [4, 0, 2]])
    variables = drawn(model.init, tokens)
    cache = compiled(model, "init_cache")(variables, jnp.tile(jnp.arange(4), (2, 1)))
    for t in range(tokens.shape[1]):
        logits, cache = compiled(model, "step")(variables, tokens[:, t], cache)
    np.testing.assert_allclose(logits, compiled(model)(variables, tokens)[:, -1], rtol=1e-4, atol=1e-5)


def test_the_flops_of_a_model_with_a_kernel_are_those_of_the_reference():
    config = get_config()
    config.model.update(
        {**{key: value for key, value in FIELDS.items() if key in config.model}, "backend": "reference"}
    )
    config.data.update({"length": 8, "batch": 2})
    wanted = describe(config)
    config.model.backend = "splash:interpret=True"
    found = describe(config)
    assert found.flops == wanted.flops != flops(found.step, *wanted.arguments)
    assert found.cost(*wanted.arguments).flops == wanted.flops


def test_the_docs_show_what_each_kernel_takes():
    page = (ROOT / "docs" / "backends.md").read_text(encoding="utf-8")
    for name in KERNELS:
        kernel = backends.make_backend(name).refusal.args[0]
        assert (
            f"| `{name}` | {kernel.platform.upper()} | {', '.join(kernel.dtypes)} | {', '.join(kernel.masks)} |" in page
        )
