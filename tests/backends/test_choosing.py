"""Which backend is chosen: what kernels refuse by name, the order of several, and the mark of the chosen one."""

import functools
import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attention_jax import backends
from attention_jax.backends import Call
from attention_jax.errors import UserError
from attention_jax.modules.spec import AttentionSpec, with_backend
from attention_jax.ops.masking import (
    causal_mask,
    combine,
    keys_mask,
    prefix_mask,
    segment_mask,
    valid_lens_mask,
    window_mask,
)
from attention_jax.training.compiling import Programs
from configs import nmt

KERNELS = ("cudnn", "triton", "flash", "splash", "tokamax")


def asked(score="scaled_dot", normalize="softmax", **more):
    return AttentionSpec(score, normalize).attention()._replace(**more)


N = 8
BFLOAT16 = Call("bfloat16", N, N, 8, 8)
MASKED = {
    "an offset": (causal_mask(N, N, 1), "not causal with an offset"),
    "prefix": (prefix_mask(N, N, 2), "not prefix"),
    "an array": (np.ones((N, N), bool), "not array"),
    "per query": (valid_lens_mask(jnp.ones((1, N), int), N, per_query=True), "not lengths by query"),
    "a window of an array": (window_mask(N, N, jnp.int32(2)), "not window with an offset or a width that is traced"),
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(
    ("attention", "reason"),
    [
        (asked(with_weights=True), "it never makes all weights"),
        (asked("cosine"), "it scores by dot or scaled_dot alone"),
        (asked(normalize="sigmoid"), "it normalizes by softmax alone"),
        (asked(bias=jnp.zeros((N, N))), "it adds no bias to scores"),
        (asked(dropout=object()), "it has no dropout of weights (leave 'attention' out of dropout_sites)"),
        *((asked(mask=mask), reason) for mask, reason in MASKED.values()),
    ],
)
def test_what_no_kernel_can_do_is_refused_by_name(name, attention, reason):
    with pytest.raises(ValueError, match=rf"^backend='{name}': .*\. Choose backend='reference'\.$") as error:
        backends.choose(name, [attention], None)
    assert reason in str(error.value)


SEGMENTS = segment_mask(jnp.zeros((1, N)), jnp.zeros((1, N)))


@pytest.mark.parametrize(
    ("name", "mask", "call", "reason"),
    [
        ("cudnn", None, BFLOAT16._replace(dtype="float32"), "in float16 or bfloat16, and this is float32"),
        ("flash", None, BFLOAT16._replace(dtype="float16"), "in bfloat16 or float32, and this is float16"),
        ("cudnn", SEGMENTS, BFLOAT16, "of masks it has causal, window, lengths, not segments"),
        ("cudnn", window_mask(N, N, 2), BFLOAT16, "windows of keys before the query alone (causal)"),
        ("cudnn", causal_mask(N, 9), BFLOAT16._replace(keys=9), "it is causal where queries are as many as keys"),
        ("cudnn", None, BFLOAT16._replace(features=12, value_features=12), "a multiple of 8 features, 256 at most"),
        ("flash", window_mask(N, N, 2), BFLOAT16, "of masks it has causal, lengths, keys, segments, not window"),
        ("flash", None, BFLOAT16._replace(value_features=4), "it has queries, keys and values of one size"),
        ("splash", combine(SEGMENTS, SEGMENTS), BFLOAT16, "not segments twice"),
        ("splash", window_mask(N, 9, 2), BFLOAT16._replace(keys=9), "it has windows where queries are as many as keys"),
        ("triton", None, BFLOAT16._replace(keys=9), "it is for self-attention, where queries are as many as keys"),
        ("triton", None, BFLOAT16._replace(features=256, value_features=256), "heads of up to 128 features"),
        ("triton", None, BFLOAT16, "it computes on a GPU, and programs here are for cpu"),
        ("splash", None, BFLOAT16, "it computes on a TPU, and programs here are for cpu"),
        ("splash", None, BFLOAT16._replace(has_dropout=True), "it has no dropout of weights"),
    ],
)
def test_what_one_kernel_cannot_do_is_refused_by_name(name, mask, call, reason):
    with pytest.raises(ValueError, match=rf"^backend='{name}': ") as error:
        backends.choose(name, [asked(mask=mask)], call)
    assert reason in str(error.value)


def test_a_mask_that_differs_by_head_is_refused():
    x, mask = jnp.ones((2, 3, N, 8)), valid_lens_mask(jnp.ones((2, 3), int), N)
    with pytest.raises(ValueError, match=r"mask: differs by head, with axes \(2, 3\)"):
        backends.attend("splash:interpret=True", x, x, x, mask=mask)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("flash:queries=100", "queries=100: needs a multiple of 128"),
        ("splash:keys=True", "keys=True: needs a multiple of 128"),
        ("triton:interpret=1", "interpret=1: needs True or False"),
        ("tokamax:implementation=best", "implementation='best': choose one of triton, xla"),
    ],
)
def test_an_option_that_cannot_be_used_is_refused(text, reason):
    with pytest.raises(ValueError, match=rf"^backend='{text}': {reason}\.$"):
        backends.make_backend(text)


def test_triton_is_refused_where_jax_does_not_ship_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=rf"^backend='triton': JAX {jax.__version__} does not ship it\. Choose"):
        backends.choose("triton", [asked()], BFLOAT16)


def test_tokamax_is_refused_where_it_is_not_installed(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ValueError, match=r'tokamax is not installed.*: pip install "attention_jax\[tokamax\]"\. Choose'
    ):
        backends.choose("tokamax", [asked()], BFLOAT16)


def test_the_first_backend_that_can_is_chosen_and_the_user_is_told_why_others_are_not():
    told = []
    chosen = backends.choose("cudnn/splash/chunked:keys=64/reference", [asked()], BFLOAT16, told.append)
    assert chosen == "chunked:keys=64"
    assert told == [
        "backend chunked:keys=64, not cudnn: it computes on a GPU, and programs here are for cpu",
        "backend chunked:keys=64, not splash: it computes on a TPU, and programs here are for cpu",
    ]
    assert backends.choose("cudnn/auto", [asked()], BFLOAT16) == "reference"
    assert backends.choose("cudnn/auto", [asked()], BFLOAT16._replace(keys=backends.LONG)) == "chunked"


def test_all_that_is_asked_decides_which_backend_is_chosen():
    both = [asked(), asked(normalize="sparsemax")]
    assert backends.choose("splash:interpret=True/chunked/reference", both[:1], BFLOAT16) == "splash:interpret=True"
    assert backends.choose("splash:interpret=True/chunked/reference", both, BFLOAT16) == "reference"


def test_a_choice_of_which_none_can_says_why_each_cannot():
    reasons = (
        r"^backend='cudnn/chunked': cudnn: it computes on a GPU.*; chunked: this normalizer needs whole rows\. Choose"
    )
    with pytest.raises(ValueError, match=reasons):
        backends.choose("cudnn/chunked", [asked(), asked(normalize="entmax15")], BFLOAT16)
    with pytest.raises(ValueError, match=r"^backend='fast': choose one of reference, chunked"):
        backends.choose("reference/fast", [asked()], BFLOAT16)


def marked(name, text):
    class Program:
        as_text = staticmethod(lambda: text)

    backends.require_mark(name, Program)


def test_a_program_without_the_kernel_that_was_chosen_fails():
    with pytest.raises(
        UserError, match=r"^backend='cudnn': the compiled program has no call of it \(__cudnn\$fmhaSoft"
    ):
        marked("cudnn", "fusion\n dot")
    marked("cudnn", 'custom_call_target="__cudnn$fmhaSoftmax"')
    with pytest.raises(UserError, match=r"backend='flash'"):  # a line beside the kernel's has its name
        marked("flash", 'slice, op_name="jit(flash_attention)"\ncustom_call_target="tpu_custom_call"')
    for name in ("reference", "chunked", "splash:interpret=True"):
        marked(name, "fusion")


def test_what_inspects_programs_sees_each_before_its_first_call():
    programs = Programs(lambda x: x + 1, functools.partial(backends.require_mark, "splash"))
    with pytest.raises(UserError, match=r"^backend='splash'"):
        programs.call("key", jnp.ones(3))
    assert len(programs) == 0


FIELDS = {"positions": "rotary", "width": 8, "heads": 2, "dropout_sites": (), "mixer": "attention", "reach": 2}
MASKS_OF_TEXTS = [causal_mask(8, 8)]
SEVERAL = "triton:interpret=True/flash:interpret=True/splash:interpret=True/reference"


def test_a_falloff_from_a_predicted_centre_passes_a_backend_over_that_has_none():
    flat = nmt.MODELS["luong_local_p"]["kwargs"] | {"dtype": jnp.dtype("float32"), "backend": "flex/chunked"}
    assert with_backend(flat, 8, [None])["backend"] == "chunked"
    assert with_backend(flat | {"span": "global"}, 8, [None])["backend"] == "flex"


@pytest.mark.parametrize(
    ("changed", "masks", "expected"),
    [
        ({}, MASKS_OF_TEXTS, "triton:interpret=True"),
        ({}, [combine(causal_mask(8, 8), keys_mask(jnp.ones((1, 8), bool)))], "flash:interpret=True"),
        ({"mixer": "window"}, MASKS_OF_TEXTS, "splash:interpret=True"),
        ({"positions": "alibi"}, MASKS_OF_TEXTS, "reference"),
        ({"dropout_sites": ("attention",)}, MASKS_OF_TEXTS, "reference"),
        ({"normalize": "learned_sink"}, MASKS_OF_TEXTS, "reference"),
        ({}, [*MASKS_OF_TEXTS, prefix_mask(8, 8, 2)], "reference"),
        ({"dtype": jnp.dtype("float16")}, [keys_mask(jnp.ones((1, 8), bool))], "reference"),
    ],
)
def test_what_a_model_reads_decides_which_backend_it_gets(changed, masks, expected):
    flat = FIELDS | {"score": "scaled_dot", "normalize": "softmax", "dtype": jnp.dtype("bfloat16"), "backend": SEVERAL}
    assert with_backend(flat | changed, 8, masks)["backend"] == expected
