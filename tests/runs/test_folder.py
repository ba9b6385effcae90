"""A run's folder: locked, of one config, its files whole."""

import contextlib
import json
import math
import shutil
import subprocess
import sys
import time
from unittest import mock

import pytest
from ml_collections import ConfigDict
from support import ROOT

from attention_jax import stopping
from attention_jax.errors import UserError
from attention_jax.runs.config import flatten
from attention_jax.runs.folder import Run, hold, open_run, read_config, refuse_other, write_result
from attention_jax.stopping import Interrupted
from attention_jax.training.hyper import DEFAULTS, OWN
from configs import positional_encoding

FINISHED = {"status": "finished", "seeds": [0]}


def config(**changes):
    base = {"a": {"b": 1, "c": (1, 2)}, "train": {"steps": 10}, "seeds": (0,), "experiment": "e", "precision": {}}
    return ConfigDict({**base, **changes}).lock()


def open_once(path, conf=None, **options):
    return open_run(path, conf or config(), time.perf_counter(), **options)


def keep(run):
    """Something worth keeping, so that a refused start does not clean up."""
    run.log(1, 0, {"train.loss": 1.0, "train.tokens": 2.0})


def test_a_config_comes_back_as_it_was(tmp_path):
    with open_once(tmp_path / "w"):
        pass
    assert read_config(tmp_path / "w") == config()
    assert read_config(tmp_path) is None


def test_another_config_is_refused_with_what_differs(tmp_path):
    with open_once(tmp_path / "w") as run:
        keep(run)
    other = config(a={"b": 2, "c": (1, 3)})
    with (
        pytest.raises(UserError, match=r"config.a.b: 1 there, 2 now; config.a.c: \[1, 2\] there, .*another --workdir"),
        open_once(tmp_path / "w", other),
    ):
        pass
    assert len(Run(tmp_path / "w", 0).metrics()) == 1


def test_only_the_number_of_steps_may_be_raised_and_the_run_is_unfinished_once_it_has_more(tmp_path):
    with open_once(tmp_path / "w"):
        write_result(tmp_path / "w", FINISHED)
    longer = config(train={"steps": 20})
    with pytest.raises(UserError, match="train.steps: 10 there, 20 now"), open_once(tmp_path / "w", longer):
        pass
    assert Run(tmp_path / "w", 0).result() == FINISHED
    shutil.copytree(tmp_path / "w", tmp_path / "untrained")
    with pytest.raises(UserError, match="no data"), open_once(tmp_path / "untrained", longer, extend=True):
        raise UserError("no data")
    assert Run(tmp_path / "untrained", 0).result() == FINISHED
    with open_once(tmp_path / "untrained", longer, extend=True) as run:  # it has no checkpoint to go on from
        run.rewind(None)
        assert run.result() is None
    assert read_config(tmp_path / "untrained") == longer
    for step in (0, 10):
        (tmp_path / "w" / "checkpoints" / str(step)).mkdir(parents=True)
    with contextlib.suppress(KeyboardInterrupt), open_once(tmp_path / "w", longer, extend=True) as run:
        assert run.is_longer
        run.record(10)
        raise KeyboardInterrupt
    with open_once(tmp_path / "w") as run:  # what it was
        assert run.result() == FINISHED
        assert not run.is_longer
    with open_once(tmp_path / "w", longer, extend=True) as run:
        run.log(11, 0, {"train.loss": 1.0})
        assert run.result() is None
    with pytest.raises(UserError, match="train.steps: 20 there, 10 now"), open_once(tmp_path / "w"):
        pass


def test_a_folder_that_holds_something_else_is_refused_and_untouched(tmp_path):
    (tmp_path / "precious.txt").write_text("x")
    with pytest.raises(UserError, match="not empty and holds no run"), open_once(tmp_path):
        pass
    assert (tmp_path / "precious.txt").read_text() == "x"
    with pytest.raises(UserError, match="precious.txt: not a folder"), open_once(tmp_path / "precious.txt"):
        pass


def test_a_refused_start_leaves_nothing_behind(tmp_path):
    def fail():
        with open_once(tmp_path / "w") as run:
            run.subfolder("data")
            raise UserError("bad input")

    with pytest.raises(UserError, match="bad input"):
        fail()
    assert not (tmp_path / "w").exists()


def test_a_refused_start_leaves_what_it_did_not_make(tmp_path):
    def fail(path):
        with open_once(path) as run:
            for name in ("data", "checkpoints", "figures"):
                run.subfolder(name)
            for name in ("data/meta.json", "data/train.npy", "data/mine.txt", "figures/loss.png", "notes.txt"):
                (path / name).write_text("x")
            (path / "sketches").mkdir()
            raise UserError("bad input")

    (tmp_path / "there before").mkdir()
    for path in (tmp_path / "new", tmp_path / "there before"):
        with pytest.raises(UserError, match="bad input"):
            fail(path)
        left = {str(child.relative_to(path)) for child in path.rglob("*")}
        assert left == {"data", "data/mine.txt", "notes.txt", "sketches"}
        for child in ("data/mine.txt", "notes.txt"):
            (path / child).unlink()


def test_an_empty_folder_that_was_there_before_stays_after_a_refused_start(tmp_path):
    with pytest.raises(UserError, match="bad input"), open_once(tmp_path):
        raise UserError("bad input")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_use_is_refused_and_free_again_when_its_process_is_killed(tmp_path):
    program = (
        "import sys, time; from pathlib import Path; from ml_collections import ConfigDict\n"
        "from attention_jax.runs.folder import open_run\n"
        "config = ConfigDict({'experiment': 'e', 'seeds': (0,), 'precision': {}})\n"
        "with open_run(Path(sys.argv[1]), config, 0.0):\n"
        "    print('open', flush=True); time.sleep(60)"
    )
    arguments = [sys.executable, "-c", program, str(tmp_path / "w")]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True, cwd=ROOT) as owner:
        assert owner.stdout.readline() == "open\n"
        other = ConfigDict({"experiment": "e", "seeds": (0,), "precision": {}})
        with pytest.raises(UserError, match=f"in use by process {owner.pid}"), open_once(tmp_path / "w", other):
            pass
        owner.kill()
    with open_once(tmp_path / "w", other):
        pass


def kept_of(run, step):
    """What the checkpoint of a step kept of a run."""
    return {"metrics": run.metrics(until=step), "seconds": 1.0, "clock": {"steps": 0.5}}


def test_a_run_that_is_gone_on_with_knows_every_process_that_trained_it(tmp_path):
    with open_once(tmp_path / "run") as run:
        run.makers = [{"device": "an abacus"}]
        kept = run.record(0)
    with open_once(tmp_path / "run") as run:
        run.makers = [{"device": "a slide rule"}]
        run.rewind(kept)
        assert run.makers == [{"device": "an abacus"}, {"device": "a slide rule"}]


def test_rewinding_drops_later_metrics_and_a_line_cut_short(tmp_path):
    with open_once(tmp_path / "w") as run:
        for step in (1, 2, 3):
            run.log(step, 0, {"train.loss": float(step), "train.tokens": 1.0})
        with open(run.path / "metrics.jsonl", "a") as file:
            file.write('{"step": 4, "tr')
        assert [line["step"] for line in run.metrics()] == [1, 2, 3]
        run.rewind(kept_of(run, 2))
        run.log(3, 0, {"train.loss": 30.0, "train.tokens": 3.0})
        assert [line["step"] for line in run.metrics()] == [1, 2, 3]
        assert run.mean_over_steps("train.loss", 0, after=1) == (2 * 1 + 30 * 3) / 4


def test_a_restored_run_has_its_checkpoints_lines_whatever_is_left_of_its_log(tmp_path):
    with open_once(tmp_path / "w") as run:
        run.rewind(None)
        for step in (1, 2, 3):
            run.log(step, 0, {"train.loss": float(step), "train.tokens": 1.0})
        kept, path = kept_of(run, 2), run.path / "metrics.jsonl"
        whole = path.read_text().splitlines(keepends=True)
    for left in ("", whole[0], "".join(whole), whole[0] + "{]\n" + whole[2], "\udcff\n"):
        path.write_text(left, errors="surrogateescape")
        with open_once(tmp_path / "w") as run:
            run.rewind(kept)
            path.unlink()  # the log is for others: what this process knows does not depend on it
            run.log(3, 0, {"train.loss": 3.0, "train.tokens": 1.0})
            assert [line["step"] for line in run.metrics()] == [1, 2, 3]
            assert run.mean_over_steps("train.loss", 0, after=0) == 2
            assert run.seconds() >= kept["metrics"][-1]["seconds"]


def test_without_lines_there_is_no_mean_and_what_is_no_line_is_left_out(tmp_path):
    run = Run(tmp_path, 0)
    assert run.metrics() == []
    assert math.isnan(run.mean_over_steps("train.loss", 0, after=0))
    (tmp_path / "metrics.jsonl").write_text(
        '{"step": 1, "seed": 0, "seconds": 1.0}\nnot a line\n"nor this"\n{"step": 2}\n'
    )
    assert run.metrics() == [{"step": 1, "seed": 0, "seconds": 1.0}]


def test_metrics_are_json_even_where_a_number_is_not(tmp_path):
    def refuse(name):
        raise AssertionError(name)

    run, path = Run(tmp_path, 0), tmp_path / "metrics.jsonl"
    run.log(1, 0, {"train.loss": math.inf, "train.tokens": 2.0, "validation.perplexity": math.nan})
    (line,) = (json.loads(text, parse_constant=refuse) for text in path.read_text().splitlines())
    assert (line["train.loss"], line["train.tokens"], line["validation.perplexity"]) == (None, 2.0, None)
    assert math.isnan(run.mean_over_steps("train.loss", 0, after=0))
    run.close()
    (events,) = tmp_path.rglob("events*")
    assert b"train/tokens" in events.read_bytes()
    assert b"train/loss" not in events.read_bytes()
    path.write_text('{"step": 1, "seed": 0, "seconds": 1.0, "a": -Infinity, "b": NaN}\n')  # of an older version
    assert Run(tmp_path, 0).metrics() == [{"step": 1, "seed": 0, "seconds": 1.0, "a": None, "b": None}]


def test_a_result_that_is_damaged_is_named(tmp_path):
    (tmp_path / "result.json").write_bytes(b"{\xff")
    with pytest.raises(UserError, match=r"result.json: not a result .*Delete it"):
        Run(tmp_path, 0).result()


def test_time_goes_on_from_an_interrupted_process(tmp_path):
    with open_once(tmp_path / "w") as run:
        run.log(1, 0, {"train.loss": 1.0})
    line = run.metrics()[0] | {"seconds": 100.0}
    (tmp_path / "w" / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    with open_once(tmp_path / "w") as run:
        run.rewind(kept_of(run, 0))
        assert run.seconds() > 100
        assert run.clock.seconds["lost"] == 99


def test_a_result_is_json_even_where_a_number_is_not(tmp_path):
    write_result(tmp_path, {"a": float("nan"), "b": [float("inf"), 1.0], "c": {"d": "é"}})
    assert json.loads((tmp_path / "result.json").read_text()) == {"a": None, "b": [None, 1.0], "c": {"d": "é"}}
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_a_tree_is_flattened_to_dotted_names():
    assert flatten({"a": {"b": 1}, "c": 2}) == {"a.b": 1, "c": 2}


def test_who_waits_for_a_folder_can_be_asked_to_stop(tmp_path):
    with hold(tmp_path / "w"):
        asked = mock.patch.object(stopping, "poll_alone", side_effect=[None, Interrupted])
        with asked, pytest.raises(Interrupted), hold(tmp_path / "w", True):
            pass


def test_a_run_of_a_version_with_adam_alone_has_it_and_goes_on_though_its_defaults_were_said_then(tmp_path):
    config = positional_encoding.get_config()
    older = {key: value for key, value in config.optimizer.items() if key not in DEFAULTS}
    written = config.to_dict() | {"optimizer": {**older, "b2": 0.999}}
    (tmp_path / "config.json").write_text(json.dumps(written))
    stored = read_config(tmp_path)
    assert (stored.optimizer.name, stored.optimizer.b1, stored.optimizer.b2) == ("adam", OWN, 0.999)
    config.optimizer.b2 = OWN
    refuse_other(tmp_path, stored, config)
    config.optimizer.b1 = 0.8
    with pytest.raises(UserError, match=r"\(config.optimizer.b1: 0.9 there, 0.8 now\)"):
        refuse_other(tmp_path, stored, config)
