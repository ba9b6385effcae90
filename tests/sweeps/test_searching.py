"""Searches over a synthetic objective: what is asked, told and pruned, that they go on, and who reports."""

import json
from importlib.util import find_spec

import numpy as np
import pytest

pytest.importorskip("optuna", reason='needs Optuna: pip install "attention_jax[search]"')

from searched import SPACE, Killed, Searched, config_of, value
from sweeper import rows_of

from attention_jax.errors import UserError
from attention_jax.launcher.modes import MODES
from attention_jax.runs.experiment import Request
from attention_jax.runs.folder import write_result
from attention_jax.sweeps import searching
from attention_jax.sweeps.folder import open_sweep, read_result
from attention_jax.sweeps.found import write_found
from attention_jax.sweeps.space import choice, uniform
from attention_jax.sweeps.study import Study
from attention_jax.sweeps.trials import cells_of, nothing_asked, write_asked
from attention_jax.sweeps.working import drop_cell

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch: pip install torch")
GP = pytest.param("gp", marks=needs_torch)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A search that nothing broke: its folder, what it measured, and its result."""
    folder, searched = tmp_path_factory.mktemp("whole"), Searched()
    return folder, searched, searched.search(folder)


def of_trial(overrides, seed):
    config = config_of().unlock()
    config.update(overrides)
    return value(config, seed)


def test_a_search_killed_at_any_moment_and_started_again_gives_the_same_table(whole, tmp_path):
    folder, searched, _ = whole
    for most in range(1, len(searched.calls), 3):
        path = tmp_path / str(most)
        with pytest.raises(Killed):
            Searched(most).search(path)
        rest = Searched()
        rest.search(path)
        assert len(rest.calls) == len(searched.calls) - most
        for file in ("search.json", "table.csv", "tables/The_winner.csv"):
            ours, theirs = (next(one.glob(file.replace(".csv", "*.csv"))) for one in (path, folder))
            assert ours.read_bytes() == theirs.read_bytes()


def test_started_again_nothing_is_measured_and_with_more_trials_only_they_are(whole, tmp_path):
    again = Searched()
    again.search(tmp_path, trials=4)
    first = len(again.calls)
    again.search(tmp_path, trials=4)
    assert len(again.calls) == first
    again.search(tmp_path)
    assert rows_of(tmp_path / "table.csv") == rows_of(whole[0] / "table.csv")


def test_a_batch_is_one_call_of_its_program(tmp_path):
    searched = Searched()
    space = {key: SPACE[key] for key in ("x", "rate")}
    searched.search(tmp_path, space, population={"how": "vmap", "most": 6})
    assert [len(cells) for cells in searched.calls] == [6, 6, 3]  # three trials with two seeds, twice; the winner


def test_the_seeds_that_chose_do_not_report(whole):
    folder, _, result = whole
    trials = result["search"]["trials"]
    told = [np.mean([of_trial(trial["overrides"], seed) for seed in (0, 1)]) for trial in trials]
    assert [trial["value"] for trial in trials] == pytest.approx(told)
    winner = trials[int(np.argmin(told))]["overrides"]
    assert result["search"]["winner"] == winner
    fresh = np.mean([of_trial(winner, seed) for seed in (2, 3, 4)])
    assert result["search"]["reporting_seeds"] == [2, 3, 4]
    assert result["search"]["fresh"]["validation.loss"][0] == pytest.approx(fresh)
    rows = rows_of(folder / "table.csv")
    assert [float(row["validation.loss"]) for row in rows] == pytest.approx(sorted(told))
    text = (folder / "table.md").read_text()
    assert text.startswith("A search by random")
    assert "called so by luck" in text
    assert (folder / "report.html").read_text().count("data:image/png") >= 2


def test_fresh_seeds_that_diverged_are_told(tmp_path):
    Searched().search(tmp_path)
    search = json.loads((tmp_path / "result.json").read_text())["search"]
    sweep = open_sweep(Searched().experiment, tmp_path)
    cells = cells_of(sweep, search["winner"], (3, 4))
    for lost, told in ((cells[:1], "without 3, which diverged"), (cells, "without 3, 4, which diverged")):
        for name in lost:
            write_result(sweep.cell(name), {**read_result(sweep.cell(name)), "status": "diverged"})
        write_found(sweep)
        assert told in (tmp_path / "table.md").read_text()
    assert json.loads((tmp_path / "result.json").read_text())["search"]["fresh_lost"] == [3, 4]


def test_where_all_fresh_seeds_diverged_the_search_has_an_answer_that_says_so(tmp_path):
    Searched().search(tmp_path)
    search = json.loads((tmp_path / "result.json").read_text())["search"]
    sweep = open_sweep(Searched().experiment, tmp_path)
    for name in cells_of(sweep, search["winner"], search["reporting_seeds"]):
        write_result(sweep.cell(name), {**read_result(sweep.cell(name)), "status": "diverged"})
    write_found(sweep)
    assert "is not known, without 2, 3, 4, which diverged" in (tmp_path / "table.md").read_text()


def test_a_setting_that_was_asked_for_twice_did_not_do_as_well_as_itself(tmp_path):
    space = {"x": choice((0.3, 0.5)), "rate": choice((1e-2,)), "kind": choice(("b",))}
    Searched().search(tmp_path, space, trials=6)
    assert "that did as well" not in (tmp_path / "table.md").read_text()


@pytest.mark.parametrize("sampler", ["tpe", "random", "qmc", GP])
def test_a_study_that_is_told_the_same_asks_for_the_same_within_its_space(sampler):
    def asked(seed, told):
        study, found = Study(SPACE, sampler, "none", seed, more_is_better=False), []
        for batch in range(4):
            for number, overrides in enumerate(study.ask(5), start=5 * batch):
                found.append(overrides)
                study.tell(number, told(overrides))
        return found

    bowl = lambda own: None if own["kind"] == "a" else (own["x"] - 0.3) ** 2  # noqa: E731
    ours = asked(0, bowl)
    assert ours == asked(0, bowl)
    assert ours != asked(1, bowl)
    assert all(-1 <= own["x"] <= 1 and 1e-4 <= own["rate"] <= 1e-1 and own["kind"] in "ab" for own in ours)
    assert (asked(0, lambda own: -bowl({**own, "kind": "b"})) == ours) == (sampler in ("random", "qmc"))


@pytest.mark.parametrize("more_is_better", [True, False])
@pytest.mark.parametrize("sampler", ["tpe", GP])
def test_a_study_turns_away_from_what_diverged(sampler, more_is_better):
    study, found = Study({"x": uniform(0, 1)}, sampler, "none", 1, more_is_better), []
    sign = 1 if more_is_better else -1
    for first in range(0, 24, 4):
        for number, own in enumerate(study.ask(4), start=first):
            found.append(own["x"])
            study.tell(number, sign * own["x"] if own["x"] < 0.5 else None)  # the nearer to what diverges the better
    assert sum(x > 0.75 for x in found[-8:]) < 4


@pytest.mark.parametrize("more_is_better", [True, False])
@pytest.mark.parametrize("pruner", ["median", "halving"])
def test_a_pruner_drops_the_worse_trials_and_what_diverged(pruner, more_is_better):
    study = Study({"x": uniform(0, 1)}, "random", pruner, 0, more_is_better)
    study.ask(8)
    sign = 1 if more_is_better else -1
    for number in range(6):
        for step in (1, 2):
            study.prunes(number, step, sign * (10.0 - number))
        study.tell(number, sign * (10.0 - number))
    assert study.prunes(6, 1, sign * -5.0)
    assert study.prunes(6, 1, sign * -5.0)  # whoever asks again
    assert not study.prunes(7, 1, sign * 50.0)
    study.ask(1)
    assert study.prunes(8, 1, np.nan)


@pytest.mark.parametrize("objective", ["validation.loss", "validation.chrf"])  # of which less, and more, is better
def test_trials_that_are_pruned_end_at_their_rung_and_cannot_win(tmp_path, monkeypatch, objective):
    config = config_of(pruner="median", trials=12, batch=6, choosing_seeds=1, reporting_seeds=1).unlock()
    config.train = {"steps": 30, "evaluate_every": 10, "best_by": "validation.loss"}
    config.sweep.metric = objective
    dropped, planned = [], []

    def train(sweep, rungs=None):
        """Every cell has at each rung ten times its value."""
        planned.append(len(sweep.plan.cells))
        for step in (*(rungs.steps if rungs else ()), 30):
            for name in (name for name in sweep.plan.cells if not sweep.is_done(name)):
                own = sweep.config_of(name)
                loss = value(own, own.seeds[0])
                sweep.cell(name).mkdir(parents=True, exist_ok=True)
                line = {"step": step, "seed": own.seeds[0], "seconds": 0.0, "validation.loss": 10 * loss}
                with open(sweep.cell(name) / "metrics.jsonl", "a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
                if step == 30:
                    ended = {
                        "status": "finished",
                        "seeds": [*own.seeds],
                        "validation": {"loss": loss, "chrf": 50 - loss},
                    }
                    write_result(sweep.cell(name), ended)
            if rungs and step < 30:
                rungs.drop(sweep, [], step)

    def drop(sweep, name, step, last):
        dropped.append((step, last["validation.loss"]))
        drop_cell(sweep, name, step, last)

    monkeypatch.setattr(searching, "share_work", train)
    monkeypatch.setattr(searching, "drop_cell", drop)
    monkeypatch.setattr("searched.config_of", lambda **asked: config.lock())
    result = Searched().search(tmp_path)
    told = [trial["value"] for trial in result["search"]["trials"]]
    values = [50 - found if found and objective == "validation.chrf" else found for found in told]
    assert None not in values[:6]  # a median of nothing drops nothing
    assert sum(found is None for found in values) == len(dropped) > 0
    assert all(step == 10 and loss > 10 * np.median(values[:6]) for step, loss in dropped)
    assert (
        result["search"]["winner"]
        == result["search"]["trials"][int(np.nanargmin(np.array(values, float)))]["overrides"]
    )
    assert {row["not counted"] for row in rows_of(tmp_path / "table.csv")} == {"", "1 dropped at a rung"}
    before = len(dropped)
    assert Searched().search(tmp_path)["search"] == result["search"]
    assert len(dropped) == before
    assert planned == [6, 12, 13] * 2  # what is planned already waits for its turn: for whom its pruner is told of


def test_a_cell_that_fails_ends_the_search_and_is_tried_again(tmp_path, whole):
    with pytest.raises(UserError, match=r"3 cells have no result; the same command tries them again:\n.*no such seed"):
        Searched(broken=[(1,)]).search(tmp_path)
    Searched().search(tmp_path)
    assert rows_of(tmp_path / "table.csv") == rows_of(whole[0] / "table.csv")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"sampler": "annealing"}, "config.search.sampler='annealing': choose one of 'tpe', 'random'"),
        ({"pruner": "best"}, "config.search.pruner='best': choose one of 'none', 'median'"),
        ({"pruner": "median"}, "config.search.pruner='median': searched trains nothing step by step: 'none'"),
        ({"trials": 0}, "config.search.trials=0: needs 1 or more"),
        ({"population": {"halving": 0.5, "rungs": (1,)}}, "config.population.halving=0.5: is for sweeps"),
        ({"sweep": {"engine": "slurm"}}, "config.sweep.engine='slurm': is for sweeps"),
        ({"sweep": {"metric": "test.loss"}}, "config.sweep.metric='test.loss': test figures choose nothing"),
        ({"space": {"y": uniform(0, 1)}}, "the config has no 'y'"),
        ({"space": {"kind": uniform(0, 1)}}, "kind=0.0: the config has a str there"),
        ({"space": {"kind": choice(("a", 1))}}, "kind=1: the config has a str there"),
        ({"space": {"x": (0, 1)}}, "'x' has .*: draw it with uniform"),
        ({"space": {"seeds": choice(((0,), (1,)))}}, "'seeds' are config.search.choosing_seeds"),
    ],
)
def test_what_cannot_be_searched_is_refused_before_anything_runs(asked, message, tmp_path):
    with pytest.raises(UserError, match=message):
        Searched(0).search(tmp_path, **asked)
    assert not (tmp_path / "search.json").exists()


def test_a_package_that_a_sampler_lacks_is_named_with_the_command_that_brings_it(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "torch" else name)
    with pytest.raises(UserError, match="sampler='gp': needs PyTorch, which is not installed: pip install torch"):
        Searched(0).search(tmp_path, sampler="gp")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r'optuna is not installed.*: pip install "attention_jax\[search\]"'):
        Searched(0).search(tmp_path)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"seed": 1}, "holds another search: seed was 0"),
        ({"space": {"x": uniform(0, 1)}}, "holds another search: it drew from another space"),
        ({"trials": 5}, "config.search.trials=5: .* has 6 already"),
    ],
)
def test_a_folder_holds_one_search(whole, asked, message):
    with pytest.raises(UserError, match=message):
        Searched(0).search(whole[0], **asked)


def test_a_search_by_gp_belongs_to_the_versions_of_what_it_computes_with(tmp_path, monkeypatch):
    def asked(torch):
        versions = {"optuna": "5.0.0", "torch": torch, "greenlet": None}
        monkeypatch.setattr("importlib.metadata.version", versions.get)
        return nothing_asked(config_of(sampler="gp"), SPACE)

    write_asked(tmp_path, asked("2.14.1"))
    with pytest.raises(UserError, match="holds another search: torch was '2.14.1'"):
        write_asked(tmp_path, asked("2.15.0"))


@pytest.mark.parametrize("mode", ["sweep", "work"])
def test_a_searchs_folder_is_gone_on_with_as_a_search_alone(whole, mode):
    with pytest.raises(UserError, match="holds a search. Go on with it: --mode=search"):
        MODES[mode](Searched().experiment, Request(config_of(), whole[0], 0.0, False))


def test_a_sweeps_folder_is_not_gone_on_with_as_a_search(tmp_path):
    (tmp_path / "plan.json").touch()
    with pytest.raises(UserError, match="holds a sweep, not a search"):
        Searched().search(tmp_path)


def test_trials_that_the_results_do_not_lead_to_are_refused(whole, tmp_path):
    told = json.loads((whole[0] / "search.json").read_text())
    told["trials"][4]["x"] += 0.1
    (tmp_path / "search.json").write_text(json.dumps(told))
    with pytest.raises(UserError, match="its results do not lead to the trials that it has"):
        Searched().search(tmp_path)
