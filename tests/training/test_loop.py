"""The loop on a model small enough to follow: resuming, seeds, the best, interruption, NaN."""

import functools
import time
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from fitting import RULE, SELDOM, TABLE, TASK, TIMETABLE, X, Y, assert_equal, batches, evaluate, hyper, loss, run

from attention_jax import stopping
from attention_jax.errors import UserError
from attention_jax.training.checkpoints import Checkpoints
from attention_jax.training.clock import Clock
from attention_jax.training.feeding import Batches
from attention_jax.training.loop import Hooks, fit, trainer
from attention_jax.training.optimizer import OPTIMIZERS, Rule
from attention_jax.training.population import POPULATIONS
from attention_jax.training.step import PLAIN, Stepping, train_step


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    return run(tmp_path_factory.mktemp("unbroken"))


def test_training_lowers_the_loss(unbroken):
    losses = [values["train.loss"] for _, _, values in unbroken[1]]
    assert losses[-1] < losses[0] / 2


def test_a_line_is_logged_where_anything_is_due_at_every_epoch_s_end_and_after_the_last_step(tmp_path):
    lines = run(tmp_path, timetable=TIMETABLE._replace(steps=32, log_every=8, evaluate_every=6, checkpoint_every=5))[1]
    due = [step for step in range(1, 33) if step == 32 or not all(step % n for n in (8, 6, 5, TASK.steps_per_epoch))]
    assert [step for step, *_ in lines] == due
    assert [step for step, _, values in lines if "validation.loss" in values] == [6, 12, 18, 24, 30, 32]
    steps = np.diff([0, *due])
    assert [values["train.tokens"] for *_, values in lines] == list(8 * steps)  # of all steps since the line before


@pytest.mark.parametrize("stop_after", [4, 13, 21])
def test_an_interrupted_run_goes_on_to_the_same_result_bit_by_bit(tmp_path, unbroken, stop_after):
    interrupted, before = run(tmp_path, stop_after=stop_after)
    assert int(interrupted[0].step) < TIMETABLE.steps
    resumed, after = run(tmp_path)
    assert_equal(resumed, unbroken[0])
    assert before + after == unbroken[1]


@pytest.mark.parametrize("stopped_at", [12, 30])
def test_a_stop_while_it_is_evaluated_leaves_a_checkpoint_that_is_complete_once_the_run_has_gone_on(
    tmp_path, unbroken, stopped_at
):
    left = [*range(6, stopped_at + 1, 6)]

    def stopped(variables):
        if left.pop(0) == stopped_at:
            raise stopping.Interrupted
        return evaluate(variables)

    run(tmp_path, task=TASK._replace(evaluate=stopped), stop_after=stopped_at)
    run(tmp_path)
    found, again = run(tmp_path)
    assert again == []
    assert_equal(found, unbroken[0])


@pytest.mark.parametrize("steps_per_call", [1, 3])
def test_how_many_steps_a_call_runs_changes_nothing(tmp_path, unbroken, steps_per_call):
    def short(seed, step, stop):
        return Batches(batches(seed, step, stop).rows[:steps_per_call], TABLE)

    timetable = TIMETABLE._replace(steps_per_call=steps_per_call)
    assert_equal(run(tmp_path, timetable=timetable, task=TASK._replace(batches=short))[0], unbroken[0])


def test_a_member_of_a_population_equals_the_same_run_alone(tmp_path, unbroken):
    members, lines = run(tmp_path / "all", seeds=(3, 0))
    assert_equal(members[1], unbroken[0][0])
    assert [seed for _, seed, _ in lines[:2]] == [3, 0]


@pytest.mark.parametrize("how", POPULATIONS)
def test_a_call_takes_the_room_of_the_states_that_it_is_given(how):
    trained, given = trainer(TASK, TIMETABLE, RULE, how=how), []

    def advance(packed, *others):
        given.append(packed)
        return trained.population.advance(packed, *others)

    watched = trained._replace(population=trained.population._replace(advance=advance))
    without_checkpoints(watched, seeds=(0, 1))
    assert given
    assert all(leaf.is_deleted() for leaf in jax.tree.leaves(given))


def test_a_call_is_many_single_steps():
    (state,) = trainer(TASK, TIMETABLE, RULE).create([0])
    member = hyper(0)
    traced = {name: value for name, value in member.items() if name != "seed"}
    step = jax.jit(functools.partial(train_step, loss, RULE, PLAIN))
    for number in range(TIMETABLE.steps):
        (rows,) = batches(0, number, number + 1).rows
        state, _ = step(state, {"x": X[rows], "y": Y[rows]}, traced)
    (whole,) = without_checkpoints(trainer(TASK, TIMETABLE, RULE))
    np.testing.assert_allclose(state.variables["params"]["w"], whole.variables["params"]["w"], rtol=1e-4)


def without_checkpoints(trained, seeds=(0,)):
    class Nowhere:
        def save(self, step, state):
            pass

        def keep_best(self, member, step, variables):
            pass

    hooks = Hooks(*[lambda *a: None] * 3, Clock())
    return fit(trained, [hyper(seed) for seed in seeds], trained.create(seeds), Nowhere(), hooks)


def test_the_best_is_of_the_evaluation_with_the_lowest_loss_and_its_variables_are_on_the_disk(tmp_path):
    (state,), lines = run(tmp_path)
    evaluated = {step: values["validation.loss"] for step, _, values in lines if "validation.loss" in values}
    best = min(evaluated, key=evaluated.__getitem__)
    assert sorted(evaluated) == [6, 12, 18, 24, 30]
    assert int(state.best.step) == best
    checkpoints = Checkpoints(tmp_path, 2, print, best=[tmp_path / "best" / "0"], read_only=True)
    assert checkpoints.best_steps() == [best]
    kept = checkpoints.restore_best(0, best, state.variables)
    assert evaluate(kept)["validation.loss"] == pytest.approx(evaluated[best])


def test_an_evaluation_that_is_not_finite_is_never_the_best(tmp_path, unbroken):
    values = iter([0.5, float("nan"), 0.9, 0.4, float("-inf")])
    task = TASK._replace(evaluate=lambda variables: {"validation.loss": next(values)})
    (state,), _ = run(tmp_path, task=task)
    assert int(state.best.step) == 24
    assert float(state.best.score) == pytest.approx(-0.4)


def test_a_steps_time_leaves_out_what_compiles_and_an_evaluation_compiles_nothing_again(tmp_path):
    traced, seen = [], []

    def slow_to_trace(*arguments):
        traced.append(time.sleep(0.5))
        return loss(*arguments)

    def log(step, member, values):
        seen.append((step, values["train.step_seconds"]))

    hooks = Hooks(log, lambda *a: None, lambda *a: None, Clock())
    trained = trainer(TASK._replace(loss=slow_to_trace), TIMETABLE, RULE)
    checkpoints = Checkpoints(tmp_path, 1, tell=print, best=[tmp_path / "best"])
    fit(trained, [hyper(0)], trained.create([0]), checkpoints, hooks)
    checkpoints.close()
    assert len(traced) == 1
    assert [step for step, _ in seen] == [5, 6, 10, 12, 15, 18, 20, 24, 25, 30]
    assert all(0 < seconds < 0.1 for _, seconds in seen)


def test_metrics_are_logged_when_due_and_count_every_item(unbroken):
    lines = unbroken[1]
    assert [step for step, _, _ in lines] == [5, 6, 10, 12, 15, 18, 20, 24, 25, 30]
    assert sum(values["train.tokens"] for _, _, values in lines) == 30 * 8
    assert all({"train.gradient_norm", "train.learning_rate"} <= set(values) for _, _, values in lines)


def test_the_last_checkpoints_are_kept(tmp_path):
    run(tmp_path)
    assert sorted(int(path.name) for path in tmp_path.iterdir() if path.name.isdigit()) == [25, 30]


def damage(folder, step):
    for path in (folder / str(step)).rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:10])


def test_an_unreadable_checkpoint_is_passed_over_and_set_aside_by_the_next(tmp_path, unbroken):
    run(tmp_path)
    damage(tmp_path, 30)
    states, lines = run(tmp_path)
    assert "30: cannot be read" in lines[0]
    assert "using the one before it" in lines[0]
    assert_equal(states, unbroken[0])
    assert (tmp_path / "30.unreadable").is_dir()


def test_where_no_checkpoint_can_be_read_nothing_starts_over_in_silence(tmp_path):
    run(tmp_path)
    damage(tmp_path, 25)
    damage(tmp_path, 30)
    with pytest.raises(UserError, match="25: cannot be read .*, nor any before it"):
        run(tmp_path)


def explode(variables, batch, dropout, hyper):
    sums, other = loss(variables, batch, dropout, hyper)
    failing = jnp.sum(jnp.abs(X[batches(0, 16, 17).rows[0]]))  # of seed 0's batch of step 17
    is_due = jnp.isclose(jnp.sum(jnp.abs(batch["x"])), failing, rtol=1e-6)
    return jax.tree.map(lambda a: jnp.where(is_due, jnp.nan, a), sums), other


def test_a_loss_that_is_not_finite_stops_at_its_step_and_keeps_the_last_checkpoint(tmp_path):
    (state,), lines = run(tmp_path, task=TASK._replace(loss=explode))
    assert lines[-1] == (17, 0, "not finite")
    assert int(state.step) == 17
    assert sorted(int(path.name) for path in tmp_path.iterdir() if path.name.isdigit()) == [10, 15]


@pytest.mark.parametrize("how", ["loop", "vmap"])
def test_a_member_that_is_not_finite_is_left_there_and_the_others_go_on(tmp_path, how):
    members, lines = run(tmp_path, timetable=SELDOM, seeds=(3, 0), task=TASK._replace(loss=explode), how=how)
    alone = run(tmp_path / "alone", timetable=SELDOM, seeds=(3,))[0][0]
    assert (17, 0, "not finite") in lines
    assert [int(state.step) for state in members] == [30, 17]
    np.testing.assert_allclose(members[0].variables["params"]["w"], alone.variables["params"]["w"], rtol=1e-5)


@pytest.mark.parametrize("seeds", [(0, 1, 2), (0, 1, 2, 3)])  # on one device, and spread over both
def test_members_side_by_side_are_what_each_is_alone_to_rounding(tmp_path, seeds):
    rates = (0.05, 0.01, 0.1, 0.02)[: len(seeds)]
    members, lines = run(tmp_path / "all", timetable=SELDOM, seeds=seeds, rate=rates, how="vmap")
    for index, (seed, rate) in enumerate(zip(seeds, rates, strict=True)):
        (alone,), own = run(tmp_path / str(seed), timetable=SELDOM, seeds=(seed,), rate=rate)
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6), members[index], alone)
        mine = [line for line in lines if line[1] == seeds[index]]
        assert [line[:2] for line in mine] == [line[:2] for line in own]


@pytest.mark.parametrize("how", ["loop", "vmap"])
def test_a_population_interrupted_goes_on_bit_by_bit(tmp_path, how):
    whole, _ = run(tmp_path / "whole", timetable=SELDOM, seeds=(0, 1), how=how)
    run(tmp_path / "cut", timetable=SELDOM, seeds=(0, 1), how=how, stop_after=13)
    assert_equal(run(tmp_path / "cut", timetable=SELDOM, seeds=(0, 1), how=how)[0], whole)


def test_training_can_stop_at_a_rung_and_go_on_to_the_same_end(tmp_path, unbroken):
    (state,), _ = run(tmp_path, until=12)
    assert int(state.step) == 12
    assert_equal(run(tmp_path)[0], unbroken[0])


def test_parameters_may_be_kept_in_bfloat16(tmp_path):
    def halved(key):
        return jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), TASK.init(key))

    (state,), _ = run(tmp_path, task=TASK._replace(init=halved), timetable=SELDOM, rate=0.1)[:2]
    assert state.variables["params"]["w"].dtype == jnp.bfloat16
    assert {leaf.dtype for leaf in jax.tree.leaves(state.moments)} <= {jnp.dtype("float32"), jnp.dtype("int32")}
    start, end = (
        evaluate(variables)["validation.loss"] for variables in (TASK.init(jax.random.key(0)), state.variables)
    )
    assert end < start / 2


def test_a_run_of_bfloat16_parameters_learns_what_one_of_float32_does_and_resumes_bit_by_bit(tmp_path):
    def halved(key):
        return jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), TASK.init(key))

    half = TASK._replace(init=halved)
    (whole,), _ = run(tmp_path / "whole", timetable=SELDOM, task=half, rate=1e-3)
    run(tmp_path / "cut", timetable=SELDOM, task=half, rate=1e-3, stop_after=13)
    assert_equal(run(tmp_path / "cut", timetable=SELDOM, task=half, rate=1e-3)[0], [whole])
    full = run(tmp_path / "full", timetable=SELDOM, rate=1e-3)[0][0]
    start = TASK.init(jax.random.key(0))["params"]["w"]
    change = full.variables["params"]["w"] - start
    np.testing.assert_allclose(
        whole.moments.master["w"] - start.astype(jnp.bfloat16).astype(jnp.float32), change, rtol=0.02
    )


def test_a_run_that_starts_from_other_variables_has_its_master_copy_of_them():
    variables = {"params": {"w": jnp.full((3, 1), 0.3, jnp.bfloat16)}}
    (state,) = trainer(TASK, TIMETABLE, RULE).create([0], variables)
    np.testing.assert_array_equal(state.moments.master["w"], variables["params"]["w"].astype(jnp.float32))


def test_what_is_saved_between_pushes_out_nothing_that_was_due(tmp_path):
    checkpoints = Checkpoints(tmp_path, 2, print, is_due=lambda step: step % 10 == 0)
    for step in (10, 20, 23, 27, 30, 34):
        checkpoints.save(step, {"step": np.full(3, step)})
    like = {"step": np.zeros(3, int)}
    assert [int(state["step"][0]) for state in checkpoints.restore_due(like)] == [30, 20]
    assert checkpoints.restore(like)[0] == 34
    checkpoints.save(40, {"step": np.full(3, 40)})
    checkpoints.close()
    assert sorted(int(path.name) for path in tmp_path.iterdir() if path.name.isdigit()) == [30, 40]


def test_checkpoints_stay_with_their_vocabulary_and_a_kill_before_the_first_leaves_nothing_in_the_way(tmp_path):
    def vocabulary_of(name, state=None):
        checkpoints = Checkpoints(tmp_path, 2, print, vocabulary=name)
        if state is not None:
            checkpoints.save(1, state)
        checkpoints.close()
        return checkpoints.vocabulary

    vocabulary_of("cut short")
    (tmp_path / "metadata").mkdir()
    (tmp_path / "metadata" / "_ROOT_METADATA").write_text("{")  # as a version left it that wrote one at first
    assert vocabulary_of("one", {"w": np.zeros(3)}) == "one"
    assert vocabulary_of("other") == "one"


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name not in ("adam", "adamw")])
def test_every_optimizer_learns_and_resumes_bit_by_bit(tmp_path, name):
    rule = Rule(name, "constant")
    rate = 0.3 if name == "muon" else 0.05  # its steps are as long as `rms` times the rate
    whole, _ = run(tmp_path / "whole", timetable=SELDOM, rule=rule, rate=rate)
    run(tmp_path / "cut", timetable=SELDOM, rule=rule, stop_after=13, rate=rate)
    assert_equal(run(tmp_path / "cut", timetable=SELDOM, rule=rule, rate=rate)[0], whole)
    start, end = (evaluate(found)["validation.loss"] for found in (TASK.init(jax.random.key(0)), whole[0].variables))
    assert end < start / 2


def test_what_is_due_at_a_step_that_was_left_out_is_done_and_its_loss_is_not_known(tmp_path):
    def fails_at_the_fourth_and_the_last(variables, batch, dropout, hyper):
        found, changed = loss(variables, batch, dropout, hyper)
        fails = jnp.isin(batch["step"][0, 0], jnp.array([3, 5]))
        return replace(found, total=jnp.where(fails, jnp.nan, found.total)), changed

    def one_by_one(seed, step, stop):
        table = TABLE | {"step": jnp.arange(40)[:, None]}
        return Batches(np.full((1, 8), step, np.int32), table)

    task = TASK._replace(loss=fails_at_the_fourth_and_the_last, batches=one_by_one)
    timetable = TIMETABLE._replace(steps=6, log_every=1, evaluate_every=2, checkpoint_every=2)
    (state,), lines = run(tmp_path, task=task, timetable=timetable, stepping=Stepping(skip_nonfinite=3))
    assert [step for step, _, _ in lines] == [1, 2, 3, 4, 5, 6]
    assert [step for step, _, values in lines if "validation.loss" in values] == [2, 4, 6]
    assert [step for step, _, values in lines if np.isnan(values["train.loss"])] == [4, 6]
    assert [values["train.skipped"] for _, _, values in lines] == [0, 0, 0, 1, 0, 1]
    assert state.best.step > 0
