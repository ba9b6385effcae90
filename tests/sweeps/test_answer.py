"""What a sweep says of its settings."""

import dataclasses
import json

import numpy as np
import pytest
from sweeper import sweep_of

from attention_jax.errors import UserError
from attention_jax.reports.conclusion import Conclusion
from attention_jax.reports.sweep import notes_of
from attention_jax.sweeps.answer import compare, learning_curve, write_answer
from attention_jax.sweeps.folder import read_result
from attention_jax.sweeps.working import drop_worst

# t of 97.5% with two degrees of freedom
T = 4.302653


def test_a_learning_curve_is_the_mean_over_seeds_in_its_interval_whether_cells_have_one_seed_or_three():
    values = {100: (3.0, 5.0, 7.0), 200: (1.0, 2.0, 6.0)}
    lines = [
        {"step": step, "seed": seed, "train.loss": value} for step in values for seed, value in enumerate(values[step])
    ]
    by_cell = sorted(lines, key=lambda line: line["seed"])
    for order in (lines, by_cell):
        curve = learning_curve(order, "test.bleu")
        half = [T * np.std(values[step], ddof=1) / np.sqrt(3) for step in values]
        assert (curve.name, curve.steps) == ("train.loss", [100, 200])
        assert curve.means == pytest.approx([5.0, 3.0])
        assert np.subtract(curve.highs, curve.means) == pytest.approx(half, rel=1e-6)
        assert curve.lows == pytest.approx(np.maximum(np.subtract([5.0, 3.0], half), 0), abs=1e-5)  # no loss is less


def test_a_step_that_a_seed_has_not_reached_is_not_on_the_curve():
    lines = [{"step": 1, "seed": seed, "loss": 1.0} for seed in (0, 1)] + [{"step": 2, "seed": 0, "loss": 0.0}]
    assert learning_curve(lines, "loss").steps == [1]
    assert learning_curve([], "loss").steps == []


def rows_of(answer):
    return [answer.settings[index].overrides["optimizer.learning_rate"] for index in answer.comparison.order]


def test_a_setting_that_lost_a_seed_is_never_best_and_comes_after_those_that_did_not(tmp_path):
    values = {1.0: {0: 0.1, 1: "diverged", 2: 0.1}, 0.5: {0: 0.4, 1: 0.5, 2: 0.6}, 0.1: {0: 0.8, 1: 0.9, 2: 0.9}}
    (answer,) = compare(sweep_of(tmp_path, values))
    assert rows_of(answer) == [0.5, 0.1, 1.0]
    assert [answer.settings[index].overrides["optimizer.learning_rate"] for index in answer.comparison.best] == [0.5]
    assert answer.comparison.rows[0].value.mean == pytest.approx(0.1)  # it is told, and not hidden


def test_test_figures_come_after_the_validation_figures_that_choose(tmp_path):
    sweep = sweep_of(tmp_path, {1.0: {0: 0.1, 1: 0.2}, 0.5: {0: 0.4, 1: 0.5}}, metric="test.loss")
    for name in sweep.plan.cells:  # validation says the opposite
        path = sweep.cell(name) / "result.json"
        result = json.loads(path.read_text())
        path.write_text(json.dumps(result | {"validation": {"loss": 1 - result["test"]["loss"]}}))
    lead, test = compare(sweep)
    assert (lead.metric, test.metric) == ("validation.loss", "test.loss")
    assert rows_of(lead) == rows_of(test) == [0.5, 1.0]
    assert lead.comparison.best == test.comparison.best == {1}
    assert "chosen by it" in " ".join(notes_of([lead, test]))
    assert "chosen by it" not in " ".join(notes_of([lead]))


def test_no_metric_of_the_test_split_chooses_the_best(tmp_path):
    sweep = sweep_of(tmp_path, {1.0: {0: 30.0, 1: 31.0}, 0.5: {0: 20.0, 1: 21.0}}, metric="test.beams.bleu")
    with pytest.raises(UserError, match="is of the test split, which chooses nothing"):
        compare(sweep)
    measured = {"loss": lambda bleu: bleu / 10, "bleu": lambda bleu: 50 - bleu}  # both say the opposite
    for name, of in measured.items():
        for cell in sweep.plan.cells:
            path = sweep.cell(cell) / "result.json"
            result = json.loads(path.read_text())
            known = result.get("validation", {}) | {name: of(result["test"]["beams.bleu"])}
            path.write_text(json.dumps(result | {"validation": known}))
        lead, test = compare(sweep)
        assert (lead.metric, test.metric) == (f"validation.{name}", "test.beams.bleu")
        assert lead.comparison.best == test.comparison.best == {1}


def test_settings_that_were_measured_on_different_data_are_told(tmp_path):
    sweep = sweep_of(tmp_path, {1.0: {0: 0.1, 1: 0.2}, 0.5: {0: 0.4, 1: 0.5}})
    for counts in ((9, 9), (9, 7)):
        for cell, count in zip(sweep.plan.cells, np.repeat(counts, 2).tolist(), strict=True):
            path = sweep.cell(cell) / "result.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | {"data": {"pairs": {"validation": count}}}))
        told = [note for note in notes_of(compare(sweep)) if "measured on different held-out data" in note]
        assert len(told) == (counts == (9, 7))


def test_of_several_metrics_the_first_leads_and_all_are_in_its_order(tmp_path):
    values = {1.0: {0: 0.1, 1: 0.2}, 0.5: {0: 0.4, 1: 0.5}}
    sweep = sweep_of(tmp_path, values)
    for name in sweep.plan.cells:  # by BLEU the other is the best
        path = sweep.cell(name) / "result.json"
        result = json.loads(path.read_text())
        loss = result["validation"]["loss"]
        result |= {"validation": {"loss": loss, "bleu": 20 * loss}, "test": {"bleu": 30 * loss}}
        path.write_text(json.dumps(result))

    def compared(metric):
        config = sweep.config.copy_and_resolve_references()
        with config.unlocked():
            config.sweep.metric = metric
        return compare(dataclasses.replace(sweep, config=config))

    answers = compared("validation.loss, validation.bleu,test.bleu")
    assert [one.metric for one in answers] == ["validation.loss", "validation.bleu", "test.bleu"]
    assert all(rows_of(one) == [1.0, 0.5] and one.comparison.best == {0} for one in answers)
    assert [row.value.mean for row in answers[2].comparison.rows] == pytest.approx([4.5, 13.5])
    answers = compared("test.bleu,validation.loss")  # which the same metric of the validation split leads
    assert [one.metric for one in answers] == ["validation.bleu", "test.bleu", "validation.loss"]
    assert all(rows_of(one) == [0.5, 1.0] and one.comparison.best == {1} for one in answers)
    for asked, message in {
        "validation.loss,validation.chrf": "no finished cell has 'validation.chrf'",
        "validation.loss,validation.beauty": "config.sweep.metric='validation.beauty': no metric of that name",
    }.items():
        with pytest.raises(UserError, match=message):
            compared(asked)


def test_where_tokenizers_know_different_shares_of_a_text_what_is_measured_of_it_says_so(tmp_path):
    sweep = sweep_of(tmp_path, {1.0: {0: 0.1, 1: 0.2}, 0.5: {0: 0.4, 1: 0.5}}, metric="validation.bits_per_byte")
    names = [*sweep.plan.cells]

    def noted(unknown, others=0):
        for name in names:
            path = sweep.cell(name) / "result.json"
            split = {"unknown": unknown if name == names[0] else others}
            path.write_text(json.dumps(json.loads(path.read_text()) | {"data": {"splits": {"validation": split}}}))
        return [note for note in notes_of(compare(sweep)) if "do not know" in note]

    assert noted(0) == []
    (note,) = noted(12)
    assert note.startswith("validation.bits_per_byte: some tokenizers do not know up to 12 tokens")
    path = sweep.cell(names[0]) / "result.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"status": "diverged"}))
    assert noted(0, others=12) == []  # what diverged has measured nothing


def test_settings_whose_every_figure_is_the_same_are_named_since_what_they_differ_in_may_not_be_read(tmp_path):
    def noted(last):
        values = {1.0: {0: 0.1, 1: 0.2}, 0.5: {0: 0.1, 1: last}, 0.1: {0: 0.1, 1: 0.3}}
        return [note for note in notes_of(compare(sweep_of(tmp_path / str(last), values))) if "last bit" in note]

    (note,) = noted(0.2)
    assert note.endswith(
        "metric: learning_rate 1 and learning_rate 0.5. What they differ in changed nothing: is it read?"
    )
    assert noted(0.2 + 1e-15) == []


def test_seeds_that_choose_at_rungs_are_not_reported_and_where_all_do_both_the_caption_says_so(tmp_path):
    values = {1.0: {0: 9.0, 1: 9.0, 2: 0.3, 3: 0.5}, 0.5: {0: 9.0, 1: 9.0, 2: 0.4, 3: 0.6}}
    halving = {"halving": 0.5, "rungs": (10,)}
    (answer,) = compare(sweep_of(tmp_path / "apart", values, population=halving | {"halving_seeds": 2}))
    assert [row.value.mean for row in answer.comparison.rows] == pytest.approx([0.4, 0.5])
    assert "The first seeds (0, 1) chose at the rungs" in " ".join(notes_of([answer]))
    values[0.1] = {0: "dropped", 1: "dropped", 2: "dropped", 3: "dropped"}
    (answer,) = compare(sweep_of(tmp_path / "same", values, population=halving))
    assert "their intervals cover less than 95%" in " ".join(notes_of([answer]))


def test_seeds_that_chose_stay_apart_when_lower_ones_come_later(tmp_path):
    values = {1.0: {1: 9.0, 2: 0.3, 3: 0.5, 0: 0.7}, 0.5: {1: 9.0, 2: 0.4, 3: 0.6, 0: 0.8}}
    population = {"halving": 0.5, "rungs": (10,), "halving_seeds": 1}
    (answer,) = compare(sweep_of(tmp_path, values, population=population))
    assert [row.value.mean for row in answer.comparison.rows] == pytest.approx([0.5, 0.6])
    assert "The first seeds (1) chose at the rungs" in " ".join(notes_of([answer]))


def test_seeds_of_a_cell_that_have_one_result_together_are_refused(tmp_path):
    sweep = sweep_of(tmp_path, {1.0: {0: 0.1}, 0.5: {0: 0.4}})
    (path, *_) = (sweep.cell(name) / "result.json" for name in sweep.plan.cells)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"seeds": [0, 1, 2]}))
    with pytest.raises(UserError, match=r"the seeds \(0, 1, 2\) of a cell have one result together: give every seed a"):
        compare(sweep)


def test_the_intervals_of_what_rungs_leave_over_cover_as_often_as_they_say_where_other_seeds_chose(tmp_path, random):
    tasks, settings, seeds, truth = 100, 4, 5, 10.0
    drawn = truth + random.normal(size=(tasks, settings, seeds))
    values = {
        (("data.task", task), ("optimizer.learning_rate", float(setting))): dict(enumerate(drawn[task, setting]))
        for task in range(tasks)
        for setting in range(settings)
    }
    population = {"halving": 0.5, "rungs": (10, 20), "halving_seeds": 2}
    sweep = sweep_of(tmp_path, values, population=population, within=("data.task",))
    results = {name: sweep.cell(name) / "result.json" for name in sweep.plan.cells}
    measured = {name: path.read_text() for name, path in results.items()}
    for name, path in results.items():
        own = json.loads(measured[name])
        lines = [
            {"step": step, "seconds": 1.0, "seed": own["seeds"][0], "validation.loss": own["validation"]["loss"]}
            for step in (10, 20)
        ]
        (sweep.cell(name) / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        path.unlink()
    for rung in (10, 20):
        drop_worst(sweep, [*sweep.plan.cells], rung)
    for name in sweep.plan.cells:
        if not sweep.is_done(name):
            results[name].write_text(measured[name])
    (answer,) = compare(sweep)
    whole = [row for row in answer.comparison.rows if row.value is not None]
    assert len(whole) == tasks  # of each task one is left: tasks are not ranked against each other
    assert all(len(row.measured.values) == seeds - 2 for row in whole)
    assert np.mean([row.value.low < truth < row.value.high for row in whole]) >= 0.9


def climbed(tmp_path, values, **population):
    """What is dropped of a sweep at its first rung."""
    sweep = sweep_of(tmp_path, values, population={"halving": 0.5, "rungs": (10,), **population})
    for name in sweep.plan.cells:
        path, (seed,) = sweep.cell(name) / "result.json", sweep.flat[name]["seeds"]
        result = json.loads(path.read_text())
        if result["status"] == "finished":
            line = {"step": 10, "seconds": 1.0, "seed": seed, "validation.loss": result["validation"]["loss"]}
            (sweep.cell(name) / "metrics.jsonl").write_text(json.dumps(line) + "\n")
            path.unlink()
    drop_worst(sweep, [*sweep.plan.cells], 10)
    dropped = [result for name in sweep.plan.cells if (result := read_result(sweep.cell(name))) is not None]
    assert {result["seconds"] for result in dropped if result["status"] == "dropped"} <= {1.0}
    ended = [name for name in sweep.plan.cells if (read_result(sweep.cell(name)) or {}).get("status") == "dropped"]
    return {sweep.flat[name]["optimizer.learning_rate"] for name in ended}


def test_a_setting_of_which_a_seed_diverged_is_last_at_a_rung(tmp_path):
    assert climbed(tmp_path, {1.0: {0: 0.1, 1: "diverged"}, 0.5: {0: 0.4, 1: 0.5}}) == {1.0}


def test_at_a_rung_the_first_seeds_choose_where_some_are_set_apart(tmp_path):
    values = {1.0: {0: 0.9, 1: 0.0, 2: 0.0}, 0.5: {0: 0.4, 1: 0.5, 2: 0.5}}
    assert climbed(tmp_path / "all", values) == {0.5}
    assert climbed(tmp_path / "one", values, halving_seeds=1) == {1.0}


def test_a_rung_that_some_cell_has_not_reached_drops_nothing(tmp_path, capsys):
    sweep = sweep_of(tmp_path, {1.0: {0: 0.1}, 0.5: {0: 0.4}}, population={"halving": 0.5, "rungs": (10,)})
    first, second = sweep.plan.cells
    for name in (first, second):
        (sweep.cell(name) / "result.json").unlink()
    (sweep.cell(first) / "metrics.jsonl").write_text(
        '{"step": 10, "seconds": 1.0, "seed": 0, "validation.loss": 1.0}\n'
    )
    drop_worst(sweep, [first, second], 10)
    assert "1 cells have not reached it: nothing is dropped" in capsys.readouterr().err
    assert not any(map(sweep.is_done, sweep.plan.cells))


def test_a_number_that_was_not_finite_is_not_on_the_curve():
    lines = [{"step": step, "seed": 0, "perplexity": value, "train.loss": 1.0} for step, value in ((1, None), (2, 9.0))]
    assert learning_curve(lines, "perplexity").steps == [2]
    assert learning_curve(lines[:1], "perplexity").steps == []


def test_settings_that_agree_are_compared_whether_a_key_is_overridden_or_not(tmp_path):
    values = {
        (("data.task", task), ("optimizer.learning_rate", rate)): {0: value, 1: value + 0.1}
        for task, rate, value in (("copy", 1.0, 0.1), ("copy", 0.5, 0.4), ("sort", 1.0, 0.9), ("sort", 0.5, 0.6))
    }
    sweep = sweep_of(tmp_path, values, within=("data.task",))
    for name, cell in sweep.plan.cells.items():  # as where a variant says which task it is
        sweep.plan.cells[name] = cell._replace(overrides={k: v for k, v in cell.overrides.items() if k != "data.task"})
    (answer,) = compare(sweep)
    assert answer.comparison.baselines == (0, 0, 2, 2)
    assert answer.comparison.best == {0, 3}


def test_a_baseline_or_a_group_that_no_cell_has_is_refused_when_an_answer_is_written_again(tmp_path):
    sweep = sweep_of(tmp_path, {1.0: {0: 0.1, 1: 0.2}, 0.5: {0: 0.4, 1: 0.5}})
    for key, value, message in (
        ("baseline", "optimizer.learning_rate=7", "no setting has these values"),
        ("within", ("optimizer.drpout",), "no cell has a 'optimizer.drpout'"),
    ):
        config = sweep.config.copy_and_resolve_references()
        with config.unlocked():
            config.sweep[key] = value
        with pytest.raises(UserError, match=message):
            compare(dataclasses.replace(sweep, config=config))


def test_a_cell_of_which_a_seed_is_still_on_its_way_to_a_rung_is_not_ranked(tmp_path, capsys):
    sweep = sweep_of(tmp_path, {1.0: {0: 0.1}, 0.5: {0: 0.4}}, population={"halving": 0.5, "rungs": (10,)})
    first, second = sweep.plan.cells
    sweep.flat[first]["seeds"] = (0, 1)
    for name in (first, second):
        (sweep.cell(name) / "result.json").unlink()
        (sweep.cell(name) / "metrics.jsonl").write_text('{"step": 10, "seed": 0, "seconds": 1, "validation.loss": 1}\n')
    drop_worst(sweep, [first, second], 10)
    assert "1 cells have not reached it" in capsys.readouterr().err
    assert not any(map(sweep.is_done, sweep.plan.cells))


def test_what_is_not_reported_is_not_drawn(tmp_path):
    values = {1.0: {0: 9.0, 1: 0.3, 2: 0.5}, 0.5: {0: 9.0, 1: 0.4, 2: 0.6}}
    population = {"halving": 0.5, "rungs": (10,), "halving_seeds": 1}
    sweep = sweep_of(tmp_path, values, population=population)
    for name in sweep.plan.cells:
        (seed,) = sweep.flat[name]["seeds"]
        line = {"step": 10, "seed": seed, "seconds": 1.0, "validation.loss": values[1.0][seed]}
        (sweep.cell(name) / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    (answer,) = compare(sweep)
    assert answer.settings[0].curve.means == pytest.approx([0.4])


def test_an_answer_that_is_written_again_is_still_of_the_code_that_made_its_cells(tmp_path):
    sweep = sweep_of(tmp_path, {1.0: {0: 0.1}, 0.5: {0: 0.4}})
    for name in sweep.plan.cells:
        path = sweep.cell(name) / "result.json"
        made = {"code": {"commit": "abc", "changed": False}, "device": "d", "versions": {}}
        path.write_text(json.dumps(json.loads(path.read_text()) | made))
    (tmp_path / "result.json").write_text(
        json.dumps({"command": "python launch.py --mode=sweep", "status": "finished", "seeds": [0]})
    )
    write_answer(sweep)
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["code"] == {"commit": "abc", "changed": False}
    assert result["command"] == "python launch.py --mode=sweep"


def test_a_cell_without_numbers_is_as_lost_to_a_conclusion_as_to_the_table_whatever_it_ended_by(tmp_path):
    values = {1.0: {0: 0.1, 1: "dropped", 2: "diverged"}, 0.5: {0: 0.4, 1: 0.5, 2: 0.6}}
    sweep, seen = sweep_of(tmp_path, values), []
    (sweep.cell(list(sweep.plan.cells)[-1]) / "result.json").unlink()  # as of one that failed

    def conclude(config, cells, folder, palette):
        seen.extend(cells)
        return Conclusion({}, [], [])

    write_answer(dataclasses.replace(sweep, experiment=sweep.experiment._replace(conclude=conclude)))
    found = {(cell.config.optimizer.learning_rate, *cell.result["seeds"]): cell.result["status"] for cell in seen}
    assert [key for key, status in found.items() if status == "diverged"] == [(1.0, 1), (1.0, 2), (0.5, 2)]
    assert len(found) == 6
