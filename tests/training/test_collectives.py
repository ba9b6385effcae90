"""What devices send one another, read from HLO texts that are written out here."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from attention_jax.training.collectives import Traffic, bytes_of, traffic
from attention_jax.training.placement import MESH, make_mesh

NOTHING = Traffic(0, 0)
BODY = """
%body (carry: (s32[], f32[8])) -> (s32[], f32[8]) {
  %carry = (s32[], f32[8]{0}) parameter(0)
  %x = f32[8]{0} get-tuple-element(%carry), index=1
  %gathered = f32[32]{0:T(128)} all-gather(%x), channel_id=1, replica_groups=[1,4]<=[4], dimensions={0}
  ROOT %next = (s32[], f32[8]{0}) tuple(%carry)
}

%condition (carry.1: (s32[], f32[8])) -> pred[] {
  %bound = s32[] constant(24)
  %carry.1 = (s32[], f32[8]{0}) parameter(0)
  %index = s32[] get-tuple-element(%carry.1), index=0
  ROOT %less = pred[] compare(%index, %bound), direction=LT
}
"""
LOOP = """
ENTRY %main (x: f32[8]) -> f32[8] {
  %start = (s32[], f32[8]{0}) tuple()
  %loop = (s32[], f32[8]{0}) while(%start), condition=%condition, body=%body{known}
}
"""


def entry(*lines):
    text = "\n".join(f"  {line}" for line in lines)
    return f"ENTRY %main (x: f32[8]) -> f32[8] {{\n  %x = f32[8]{{0}} parameter(0)\n{text}\n}}\n"


@pytest.mark.parametrize(
    ("kind", "line", "count"),
    [
        ("all-reduce", "%a = f32[8]{0} all-reduce(%x), channel_id=1, to_apply=%add", 32),
        ("all-gather", "%a = f32[32]{0} all-gather(%x), channel_id=1, dimensions={0}", 128),
        ("reduce-scatter", "%a = f32[2]{0} reduce-scatter(%x), channel_id=1, to_apply=%add", 32),
        ("all-to-all", "%a = f32[8]{0} all-to-all(%x), channel_id=1", 32),
        ("collective-permute", "%a = f32[8]{0} collective-permute(%x), channel_id=1", 32),
        ("all-gather", "%a = (f32[8]{0}, f32[32]{0}) all-gather-start(%x), channel_id=1", 128),
        ("all-reduce", "%a = f32[8]{0:T(8,128)S(1)} all-reduce-start(%x), channel_id=1, to_apply=%add", 32),
        ("all-reduce", "%a = (f32[8]{0}, /*index=1*/f32[8]{0}) all-reduce(%x, %x), channel_id=1", 64),
    ],
)
def test_a_collective_has_the_bytes_of_its_larger_side(kind, line, count):
    found = traffic(entry(line, f"%done = f32[8]{{0}} {kind}-done(%a)"))
    assert found.pop(kind) == Traffic(1, count)
    assert set(found.values()) == {NOTHING}


@pytest.mark.parametrize(
    ("known", "times"), [("", 24), (', backend_config={"known_trip_count":{"n":"7"},"known_init_step":{}}', 7)]
)
def test_the_body_of_a_loop_counts_as_often_as_it_runs(known, times):
    assert traffic(BODY + LOOP.replace("{known}", known))["all-gather"] == Traffic(times, times * 128)


def test_the_body_of_a_loop_of_unknown_length_counts_once():
    text = BODY.replace("s32[] constant(24)", "s32[] get-tuple-element(%carry.1), index=2") + LOOP
    assert traffic(text)["all-gather"] == Traffic(1, 128)


def test_one_that_goes_on_over_several_fusions_counts_once():
    step = "%{0} (x.{0}: f32[8]) -> f32[32] {{\n  %x.{0} = f32[8]{{0}} parameter(0)\n" + (
        "  ROOT %g.{0} = f32[32]{{0}} all-gather(%x.{0}), channel_id=9\n}}\n\n"
    )
    calls = [f"%f.{name} = f32[32]{{0}} fusion(%x), kind=kCustom, calls=%{name}" for name in ("begin", "end")]
    assert traffic(step.format("begin") + step.format("end") + entry(*calls))["all-gather"] == Traffic(1, 128)


def test_a_sum_of_which_a_device_keeps_a_part_is_a_scatter():
    inner = "%all-reduce-scatter.1 (x.1: f32[8]) -> f32[2] {\n  %x.1 = f32[8]{0} parameter(0)\n"
    inner += "  %sum = f32[8]{0} all-reduce(%x.1), channel_id=3\n}\n\n"
    found = traffic(inner + entry("%f = f32[2]{0} fusion(%x), kind=kCustom, calls=%all-reduce-scatter.1"))
    assert (found["reduce-scatter"], found["all-reduce"]) == (Traffic(1, 32), NOTHING)


def test_what_nothing_calls_does_not_count():
    assert traffic(BODY + entry("%y = f32[8]{0} negate(%x)"))["all-gather"] == NOTHING


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("f32[8,128]{1,0:T(8,128)}", 4096),
        ("(bf16[8,16]{1,0}, pred[3], s32[])", 256 + 3 + 4),
        ("f8e4m3fn[10]", 10),
        ("s4[10]", 5),
        ("token[]", 0),
    ],
)
def test_the_bytes_of_arrays_are_of_their_elements(text, count):
    assert bytes_of(text) == count


def test_a_compiled_scan_over_two_devices_sums_as_often_as_it_runs():
    mesh = make_mesh({**MESH, "data": 2})
    x = jax.ShapeDtypeStruct((8, 4), jnp.float32, sharding=NamedSharding(mesh, PartitionSpec("data")))

    def program(x):
        return jax.lax.scan(lambda total, _: (total + jnp.sum(x * total), None), jnp.zeros(()), None, length=5)[0]

    assert traffic(jax.jit(program).lower(x).compile().as_text())["all-reduce"] == Traffic(5, 20)
