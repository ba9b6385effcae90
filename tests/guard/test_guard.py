"""What is worse than stored fails with a line that says so, and counts are those of the program that is compiled."""

import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from guard import programs
from guard.counting import COUNTS, Count, counted, counts_of
from guard.judging import complaints, gains, judged, table
from guard.programs import PROGRAMS, Program
from jax.sharding import NamedSharding, PartitionSpec
from support import ROOT

from attention_jax.ops import pooling

FLOPS = {"FLOPs": Count(0.02)}
STORED = json.loads((ROOT / "tests" / "guard" / "stored.json").read_text(encoding="utf-8"))
SQUARE = jax.ShapeDtypeStruct((8, 8), jnp.float32)


def of(flops):
    return {"step": {"FLOPs": flops}}


def test_more_than_the_tolerance_fails_with_the_program_the_count_and_the_ratio():
    assert complaints(of(1000), of(1100), FLOPS) == ["worse: step: FLOPs 1,000 stored, 1,100 now, × 1.100"]
    assert complaints(of(0), of(1), FLOPS) == ["worse: step: FLOPs 0 stored, 1 now, × inf"]


@pytest.mark.parametrize("now", [980, 1000, 1020])
def test_within_the_tolerance_nothing_is_said(now):
    assert complaints(of(1000), of(now), FLOPS) == gains(of(1000), of(now), FLOPS) == []
    assert complaints(of(0), of(0), FLOPS) == []


def test_less_than_the_tolerance_passes_with_a_word_on_how_to_keep_it():
    assert complaints(of(1000), of(900), FLOPS) == []
    line = "better: step: FLOPs 1,000 stored, 900 now, × 0.900; keep it: make bench-guard STORE=1"
    assert gains(of(1000), of(900), FLOPS) == [line]


def test_a_program_or_a_count_that_is_stored_or_here_alone_fails():
    assert complaints({}, of(1), FLOPS) == ["step: is not stored: make bench-guard STORE=1"]
    assert complaints(of(1), {}, FLOPS) == ["step: is stored, and no program: make bench-guard STORE=1"]
    assert complaints({"step": {}}, of(1), FLOPS) == ["step: FLOPs is not stored: make bench-guard STORE=1"]


def test_under_another_jax_only_what_no_compiler_decides_is_judged():
    assert judged(COUNTS, "1.0", "1.0") == COUNTS
    assert judged(COUNTS, "1.0", "1.1") == {name: count for name, count in COUNTS.items() if not count.is_compiled}


def test_the_table_has_by_how_much_a_count_differs():
    assert "1,100 (+10.0%)" in table(of(1000), of(1100), FLOPS)
    assert "%" not in table(of(1000), of(1000), FLOPS) + table({}, of(1000), FLOPS)


def test_every_program_is_stored_with_every_count():
    assert STORED["programs"].keys() == PROGRAMS.keys()
    assert all(counts.keys() == COUNTS.keys() for counts in STORED["programs"].values())


def test_what_is_stored_is_of_the_newest_jax_that_is_locked():
    locked = re.findall(r"^jax==([\d.]+)", (ROOT / "locks" / "cpu.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert STORED["jax"] == max(locked, key=lambda version: [*map(int, version.split("."))])


def chain(length):
    """A product repeated so often in a loop."""

    def run(x, w):
        return jax.lax.fori_loop(0, length, lambda _, y: jnp.tanh(y @ w), x)

    return counts_of(Program(jax.jit(run), (SQUARE, SQUARE)))


def test_product_flops_count_a_loops_body_as_often_as_it_runs_and_the_compiler_once():
    one, many = chain(3), chain(30)
    assert one["product FLOPs"] == 3 * 2 * 8**3
    assert many["product FLOPs"] == 10 * one["product FLOPs"]
    assert (many["loops"], many["products"], many["FLOPs"]) == (1, 1, one["FLOPs"])


def test_what_is_computed_again_is_worse():
    def loss(layer):
        return jax.jit(jax.grad(lambda x, w: jnp.sum(layer(layer(x, w), w) ** 2)))

    def layer(x, w):
        return jnp.tanh(jnp.tanh(x @ w) @ w)

    once, again = (counts_of(Program(loss(one), (SQUARE, SQUARE))) for one in (layer, jax.checkpoint(layer)))
    assert complaints({"x": once}, {"x": again}, COUNTS)[0].startswith("worse: x: product FLOPs ")
    assert complaints({"x": once}, {"x": once}, COUNTS) == []


def test_an_array_that_is_updated_without_being_donated_is_copied():
    def text(**options):
        update = jax.jit(lambda x: jax.lax.dynamic_update_slice(x, jnp.ones((1, 8)), (0, 0)), **options)
        return counted(update.lower(SQUARE).compile().as_text())

    given, kept = text(donate_argnums=0), text()
    assert kept["copies"] == given["copies"] + 1


def test_what_devices_send_is_counted_in_bytes():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("data",))
    rows, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("data",), ()))
    shape = jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=rows)
    found = counts_of(Program(jax.jit(lambda x: x.sum(0), out_shardings=whole), (shape,), mesh))
    assert (found["collectives"], found["bytes sent"]) == (1, 8 * 4)


def attention_with_all_scores_at_once(monkeypatch):
    attend = programs.attend
    monkeypatch.setattr(programs, "attend", lambda _, *arrays, **asked: attend("reference", *arrays, **asked))
    return "chunked attention: gradients"


def regression_in_one_block(monkeypatch):
    monkeypatch.setattr(pooling, "PAIRS", 20_000**2)
    return "kernel regression: gradient"


@pytest.mark.parametrize("fault", [attention_with_all_scores_at_once, regression_in_one_block])
def test_a_program_that_holds_at_once_what_was_made_in_blocks_is_worse(fault, monkeypatch):
    with pytest.MonkeyPatch.context() as patch:
        name = fault(patch)
    right = {name: counts_of(PROGRAMS[name]())}
    fault(monkeypatch)
    assert f"worse: {name}: memory " in "\n".join(complaints(right, {name: counts_of(PROGRAMS[name]())}, COUNTS))
