"""Starts, sweeps and translation are timed from the command on, whatever is started."""

import sys

import pytest

from attention_jax.data.grammar import sentence_pairs
from attention_jax.errors import UserError
from attention_jax.tasks.benchmark import starting, sweeping
from attention_jax.tasks.benchmark.peers import Peers
from attention_jax.tasks.benchmark.tools import CACHE, Tools
from configs import benchmark

LAUNCHER = f"""
import json, os, sys, time
from pathlib import Path
flags = dict(flag.lstrip("-").split("=", 1) for flag in sys.argv[1:])
workdir, cache = Path(flags["workdir"]), Path(os.environ["{CACHE}"])
if "fail" in flags:
    sys.exit("error: no such model")
if flags.get("mode") == "translate":
    lines = sys.stdin.read().splitlines()
    with open(workdir / "read.txt", "w") as read:
        read.write("\\n".join(lines))
elif flags.get("mode") == "sweep":
    for cell in "abc":
        (workdir / "cells" / cell).mkdir(parents=True)
        (workdir / "cells" / cell / "result.json").write_text("{{}}")
    (workdir / "result.json").write_text("{{}}")
else:
    workdir.mkdir(parents=True)
    time.sleep(0.0 if cache.exists() else 1.0)
    cache.mkdir(exist_ok=True)
    (workdir / "metrics.jsonl").write_text(json.dumps({{"step": 1}}))
    time.sleep(0.5)
"""


@pytest.fixture
def tools(tmp_path):
    (tmp_path / "launch.py").write_text(LAUNCHER)
    return Tools(tmp_path, Peers(tmp_path), (sys.executable, "launch.py"), tmp_path)


@pytest.fixture
def config(tmp_path):
    config = benchmark.get_config()
    config.rounds = config.start.rounds = 1
    config.data.tatoeba = str(tmp_path / "fra.txt")
    return config


def test_a_start_is_timed_to_its_first_step_and_to_its_end_without_and_with_a_cache(tools, config, capsys):
    rows = {row.what.partition(": ")[2]: row.ours[0] for row in starting.measure_starts(config, tools)}
    assert list(rows) == [
        *(
            "first step, an empty cache",
            "all told, an empty cache",
            "first step, a full cache",
            "all told, a full cache",
        )
    ]
    assert rows["first step, a full cache"] + 0.2 < rows["first step, an empty cache"]
    for cache in ("an empty cache", "a full cache"):
        assert rows[f"first step, {cache}"] + 0.1 < rows[f"all told, {cache}"]
    assert "left out: name its corpus, --config.data.multi30k=PATH" in capsys.readouterr().err


class Clocked(Tools):
    """Started as ever; its clock says a tenth of a second for the start, and a hundredth a line."""

    def launch(self, *arguments, text="", **options):
        super().launch(*arguments, text=text, **options)
        return 0.0, 0.1 + 0.01 * text.count("\n")


def test_translations_share_of_its_start_is_what_many_sentences_take_beside_few(tools, config):
    config.translate.sentences, config.translate.times = 20, 3
    greedy, _ = starting.measure_translation(config, Clocked(*tools))
    (rest,) = greedy.others["without its start"]
    assert rest == pytest.approx(100)
    assert greedy.ours == [pytest.approx(20 / 0.3)]
    english = {word for pair in sentence_pairs(0, 5000) for word in pair.source.split()}
    read = (tools.folder / "translating" / "read.txt").read_text().splitlines()
    assert len(read) == 60
    assert {word for line in read for word in line.split()} <= english


def test_a_sweep_is_timed_once_with_the_runs_that_it_did(tools, config, capsys):
    (row,) = sweeping.measure(config, tools)
    assert row.what == "3 runs of 500 steps"
    assert not row.others  # no peer is installed
    config.data.tatoeba = ""
    assert not list(sweeping.measure(config, tools))
    assert "left out" in capsys.readouterr().err


def test_what_fails_is_told_with_its_last_line(tools):
    with pytest.raises(UserError, match="--fail=1 .*: ended with status 1: error: no such model"):
        tools.launch(["--fail=1", "--workdir=w"], tools.folder / "cache")
