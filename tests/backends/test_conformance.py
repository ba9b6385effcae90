"""Every backend equals the float64 oracle on cells of the matrix, and what would be wrong is seen to be wrong."""

import itertools

import jax
import jax.numpy as jnp
import pytest
from backends.conformance import AXES, SETTINGS, Cell, few, refusal, together, verdict
from backends.matrix import acceptance
from support import ROOT

from attention_jax.backends import folding
from attention_jax.backends.flex import inputs, kernels
from attention_jax.backends.flex.walks import FULL, PARTIAL
from attention_jax.modules.attention import MultiHeadAttention
from attention_jax.ops import masking
from attention_jax.ops.dropout import drop
from attention_jax.ops.positions import make_encoding

_, CHUNKED, RING, *_, FLEX = AXES["backend"]
PLAIN = Cell("scaled_dot", "softmax", "causal", "none", 0.0, "float32", CHUNKED, "plain")


@pytest.mark.parametrize("cell", few(), ids=lambda cell: "-".join(map(str, cell)))
def test_a_backend_is_the_float64_oracle_forward_and_by_every_gradient(cell):
    assert verdict(cell) == ""


def test_what_every_device_has_gets_its_gradient_in_bfloat16_too():
    assert verdict(PLAIN._replace(score="concat", dtype="bfloat16", backend=RING)) == ""


def test_those_cells_have_every_setting_that_each_backend_takes():
    for backends, axis in itertools.product(together(), SETTINGS):
        met = {getattr(cell, axis) for cell in few() if cell.backend in backends}
        for value in set(AXES[axis]) - met:
            asked = [PLAIN._replace(backend=backends[0], **{"score": score} | {axis: value}) for score in AXES["score"]]
            assert all(map(refusal, asked))


def rotated_value(monkeypatch):
    project = MultiHeadAttention.project

    def wrong(self, memory, positions=None):
        found = project(self, memory, positions)
        return found._replace(value=self._rotated(found.value, positions))

    monkeypatch.setattr(MultiHeadAttention, "project", wrong)
    return PLAIN._replace(encoding="rotary")


def leaking_segment(monkeypatch):
    def wrong(query, key, query_segment, key_segment):
        return query_segment >= key_segment

    monkeypatch.setattr(masking, "_same_segment", wrong)
    return PLAIN._replace(mode="packed")


def cache_off_by_one(monkeypatch):
    causal = masking._causal
    monkeypatch.setattr(masking, "_causal", lambda q, k, offset: causal(q, k, offset + (offset > 0)))
    return PLAIN._replace(mode="cached")


def dropped_bias_gradient(monkeypatch):
    scores = folding._scores

    def wrong(job, *blocks):
        relative = job.attention.relative._replace(params=jax.lax.stop_gradient(job.attention.relative.params))
        return scores(job._replace(attention=job.attention._replace(relative=relative)), *blocks)

    monkeypatch.setattr(folding, "_scores", wrong)
    return PLAIN._replace(encoding="t5")


def dropout_by_block(monkeypatch):
    monkeypatch.setattr(folding, "drop", lambda x, dropout, start: drop(x, dropout))
    return PLAIN._replace(dropout=0.4)


def sink_that_is_never_counted(monkeypatch):
    monkeypatch.setattr(folding, "_of_sink", lambda job, peak: jnp.zeros_like(peak))
    return PLAIN._replace(normalizer="sink")


def partial_block_taken_for_an_empty_one(monkeypatch):
    monkeypatch.setattr(folding, "_may_attend", lambda job, block, keys: keys.indices[-1] <= block.indices[0])
    return PLAIN


def partial_block_taken_for_a_full_one(monkeypatch):
    kinds = inputs.kinds_of
    monkeypatch.setattr(inputs, "kinds_of", lambda *a: jnp.where(kinds(*a) == PARTIAL, FULL, kinds(*a)))
    return PLAIN._replace(backend=FLEX)


def kernel_that_forgets_a_number_of_the_bias(monkeypatch):
    vector = kernels._vector
    monkeypatch.setattr(kernels, "_vector", lambda numbers, *others: vector(numbers[:-1], *others))
    return PLAIN._replace(backend=FLEX, encoding="kerple_log")


FAULTS = (
    rotated_value,
    leaking_segment,
    cache_off_by_one,
    dropped_bias_gradient,
    dropout_by_block,
    sink_that_is_never_counted,
    partial_block_taken_for_an_empty_one,
    partial_block_taken_for_a_full_one,
    kernel_that_forgets_a_number_of_the_bias,
)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_caught_in_a_cell_that_is_right_without_it(fault, monkeypatch):
    with pytest.MonkeyPatch.context() as patch:
        cell = fault(patch)
    assert verdict(cell) == ""
    fault(monkeypatch)
    assert verdict(cell) != ""


def test_every_score_and_normalizer_is_in_the_matrix():
    from attention_jax.ops import normalizing, scoring

    names = {axis: {text.partition(":")[0] for text in AXES[axis]} for axis in ("score", "normalizer", "encoding")}
    assert names["score"] == set(scoring.SCORES)
    assert names["normalizer"] == set(normalizing.NORMALIZERS)
    relative = {"rotary", "alibi", "t5", "shaw", "fire", "kerple_log", "kerple_power"}
    assert all(make_encoding(name).rotate or make_encoding(name).bias for name in relative)
    assert relative | {"none"} == names["encoding"]


def test_the_docs_carry_what_each_backend_takes():
    assert acceptance() in (ROOT / "docs" / "backends.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (
            {"normalizer": "entmax15"},
            "backend='chunked:queries=4,keys=3': this normalizer needs whole rows. Choose backend='reference'",
        ),
        ({"score": "location:longest=8"}, "a score by the positions of keys needs all keys at once"),
        ({"normalizer": "sum"}, "normalize='sum': needs weights of 0 or more, and score='scaled_dot' may be negative"),
        ({"normalizer": "sum", "score": "kernel", "encoding": "alibi"}, "a position encoding that adds a bias"),
        (
            {"backend": "fused"},
            "backend='fused': choose one of reference, chunked, ring, gathered, flex, cudnn, triton, flash, splash",
        ),
        ({"backend": "flex", "normalizer": "sigmoid"}, "backend='flex': this normalizer is no softmax. Choose"),
        ({"backend": "flex", "encoding": "shaw"}, "this encoding's bias reads more of a query than its position"),
        ({"backend": "chunked:queries=0"}, "queries=0: needs a whole number, 1 or more"),
        ({"backend": "chunked:queries=True"}, "queries=True: needs a whole number, 1 or more"),
    ],
)
def test_what_a_backend_cannot_do_it_refuses_by_name(changed, reason):
    assert reason in refusal(PLAIN._replace(**changed))
