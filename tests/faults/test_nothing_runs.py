"""What is read is data: nothing of it runs, steers a terminal, a shell, a spreadsheet or page, or leaves its place."""

import ast
import csv
import io
import json
import os
import pickle
import re
import subprocess
import sys

import numpy as np
import pytest
from attacked import launch
from support import ROOT

from attention_jax.data.sentences import open_array
from attention_jax.data.sources import BadLines
from attention_jax.data.tfds import read_tfds
from attention_jax.errors import UserError
from attention_jax.files import read_arrays, write_whole
from attention_jax.launcher import experiments
from attention_jax.launcher.app import holds_run
from attention_jax.launcher.messages import guarded
from attention_jax.reports.page import Table, render
from attention_jax.reports.tables import as_latex, as_markdown, write_tables
from attention_jax.runs.code import changes
from attention_jax.runs.folder import Run
from attention_jax.sweeps.engines import executor_of
from attention_jax.sweeps.plan import read_plan
from attention_jax.training.progress import tell

CODE = [
    ROOT / "launch.py",
    *(p for room in ("attention_jax", "experiments", "configs") for p in (ROOT / room).rglob("*.py")),
]
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal", "joblib", "yaml", "tarfile"}
NAMES = {"eval", "exec", "compile", "__import__", "breakpoint", "input"}
METHODS = {
    ("os", "system"),
    ("os", "popen"),
    ("subprocess", "getoutput"),
    ("subprocess", "getstatusoutput"),
    ("os", "startfile"),
}


def forbidden(tree):
    """What a file must not do with what it reads."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from (name for name in named if name.partition(".")[0] in MODULES)
        if not isinstance(node, ast.Call):
            continue
        function = node.func
        if isinstance(function, ast.Name) and function.id in NAMES:
            yield function.id
        if isinstance(function, ast.Attribute) and (getattr(function.value, "id", ""), function.attr) in METHODS:
            yield function.attr
        for keyword in node.keywords:
            value = getattr(keyword.value, "value", None)
            if (keyword.arg == "shell" and value is not False) or (
                keyword.arg == "allow_pickle" and value is not False
            ):
                yield keyword.arg


@pytest.mark.parametrize(
    "line",
    [
        *("import pickle", "from dill import loads", "eval('1')", "import os; os.system('ls')", "import yaml"),
        *("import numpy as np; np.load(f, allow_pickle=True)", "import subprocess; subprocess.run(c, shell=True)"),
    ],
)
def test_what_would_run_what_is_read_is_found(line):
    assert [*forbidden(ast.parse(line))]


def test_no_code_of_ours_runs_what_it_reads():
    found = {path.name: [*forbidden(ast.parse(path.read_text(encoding="utf-8")))] for path in CODE}
    assert {name: what for name, what in found.items() if what} == {}
    assert len(CODE) > 100


def test_text_goes_to_a_terminal_through_one_function():
    printing = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "attention_jax").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "print"
    }
    ended = {"attention_jax/hosts.py", "attention_jax/stopping.py"}  # the last words of a process that ends at once
    assert printing == {"attention_jax/terminal.py", *ended}


class Bomb:
    """Unpickled, it makes a folder."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


def test_pickles_in_arrays_are_refused_and_do_not_run(tmp_path):
    ran, bombs = tmp_path / "ran", np.array([Bomb(tmp_path / "ran")], object)
    np.savez(tmp_path / "scores.npz", bombs)
    np.save(tmp_path / "tokens.npy", bombs, allow_pickle=True)
    (tmp_path / "bare.npy").write_bytes(pickle.dumps(Bomb(ran)))
    (tmp_path / "bare.npz").write_bytes(pickle.dumps(Bomb(ran)))
    for name in ("scores.npz", "bare.npz", "bare.npy"):
        with pytest.raises(UserError, match=f"{name}: damaged"):
            read_arrays(tmp_path / name)
    for name in ("tokens.npy", "bare.npy"):
        with pytest.raises(ValueError, match="allow_pickle"):
            open_array(tmp_path / name)
    assert not ran.exists()


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module on the path that leaves a file when it runs, and defines no experiment."""
    (tmp_path / "bystander").mkdir()
    for name in ("__init__", "tool"):
        (tmp_path / "bystander" / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path / "ran"


@pytest.mark.parametrize(
    "name",
    [
        *(
            "os",
            "os.path",
            "bystander",
            "bystander.tool",
            "bystander.absent",
            "../evil",
            "/tmp/evil.py",
            ".evil",
            "a..b",
        ),
        *("antigravity", "this.x", "unittest.__main__", "configs.nmt", "", "..", "x y.z", "é.é", "nmt\n"),
    ],
)
def test_an_experiment_that_a_run_names_runs_only_if_it_is_one(module, tmp_path, name, capsys):
    (tmp_path / "run").mkdir()
    config = {"experiment": name, "seeds": [0], "precision": {"matmul": "default"}}
    (tmp_path / "run" / "config.json").write_text(json.dumps(config))
    assert "config.experiment=" in launch(tmp_path / "run", "evaluate").refusal
    assert not module.exists()
    assert "bystander" not in sys.modules


def test_a_folder_of_a_run_is_no_place_of_modules(tmp_path, monkeypatch):
    (tmp_path / "cells" / "one").mkdir(parents=True)
    assert not holds_run(tmp_path / "cells")
    for name in ("config.json", ".lock"):
        (tmp_path / name).write_text("")
    (tmp_path / "mine.py").write_text("raise SystemExit('ran')")
    assert holds_run(tmp_path)
    assert holds_run(tmp_path / "cells" / "one")
    program = (
        "import sys; from absl import app; from attention_jax.launcher.app import launch\n"
        "app.run = lambda *_, **__: print('' in sys.path or sys.argv[1] in sys.path)\n"
        "launch((), 0.0)"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert process.stdout == "False\n"


def test_a_commit_that_is_an_option_of_git_is_no_commit(tmp_path):
    victim = tmp_path / "victim"
    for commit in (f"--output={victim}", "-h", "HEAD", "a b", ""):
        assert changes(commit, ["attention_jax/files.py"]) is None
    assert not victim.exists()
    result = {"status": "finished", "seeds": [0], "code": {"commit": f"--output={victim}", "changed": False}}
    (tmp_path / "result.json").write_text(json.dumps(result))
    with pytest.raises(UserError, match=r"result.json: not a result .*commit"):
        Run(tmp_path, 0).result()


@pytest.mark.parametrize("name", ["../../outside", "..", "", "a/b", "/tmp/x", "a\nb"])
def test_a_cell_cannot_lie_outside_of_its_sweep(tmp_path, name):
    program = {"name": "p", "config": {}, "how": "loop", "waves": [[name]]}
    for plan in (
        {"code": "c", "cells": {name: [{}, {}]}, "groups": []},
        {"code": "c", "cells": {}, "groups": [{**program, "name": name}]},
    ):
        (tmp_path / "plan.json").write_text(json.dumps(plan))
        with pytest.raises(UserError, match=r"plan.json: not the plan of a sweep \(.* is no name of a cell"):
            read_plan(tmp_path / "plan.json")


def test_a_data_set_names_no_feature_but_those_of_tfds(tmp_path, module):
    home = tmp_path / "pairs" / "1.0.0"
    home.mkdir(parents=True)
    for feature in ("bystander.tool.Feature", "os.system"):
        (home / "features.json").write_text(json.dumps({"pythonClassName": feature}))
        with pytest.raises(UserError, match=f"names '{feature}', which is no feature of TFDS"):
            list(read_tfds("pairs", str(tmp_path), "train", ("en", "fr"), BadLines("error")))
    for name in ("../pairs", "/etc/pairs"):
        with pytest.raises(UserError, match="not the name of a data set"):
            list(read_tfds(name, str(tmp_path), "train", ("en", "fr"), BadLines("error")))
    assert not module.exists()


NASTY = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "{{7*7}}{% raw %}",
    "</pre></script><b>",
    "\x1b[2J",
)


def test_a_page_shows_hostile_text_as_text_and_lets_nothing_but_its_own_script_run():
    table = Table(NASTY[0], NASTY, [NASTY, NASTY], NASTY[1], folded=True)
    page = render(
        NASTY[1], [table, table._replace(folded=False)], [], NASTY[3], {NASTY[0]: NASTY[1]}, said=NASTY, notes=NASTY
    )
    assert page.count("<script>") == page.count("</script>") == 1
    assert "<img" not in page
    assert "49" not in re.sub(r"sha256-[^']*|#\w+", "", page)
    assert "{{7*7}}" in page
    (policy,) = re.findall(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">', page)
    rules = dict(rule.split(" ", 1) for rule in policy.replace("&#39;", "'").split("; "))
    assert rules["default-src"] == "'none'"
    assert rules["img-src"] == "data:"
    assert re.fullmatch(r"'sha256-[\w+/]{43}='", rules["script-src"])
    assert page.index("Content-Security-Policy") < page.index("<title>")


@pytest.mark.parametrize("text", ["=1+1", "+cmd", "-x", "@SUM(A1)", "\t=1", "\r=1", "|calc", "-1+1"])
def test_a_text_that_a_spreadsheet_would_run_is_quoted(tmp_path, text):
    write_tables(Table("t", (text, "x"), [(text, -1.5), ("-1.5", "-2e-3")]), [], tmp_path)
    with open(tmp_path / "table.csv", encoding="utf-8", newline="") as file:
        head, first, second = csv.reader(file)
    assert head[0] == first[0]
    assert first[0][0] in "'\\"  # quoted, or an escape
    assert first[1] == "-1.5"
    assert second == ["-1.5", "-2e-3"]


def test_hostile_text_stays_in_its_cell_of_markdown_and_latex():
    table = Table("t", ("a",), [("x | y\nz",), ("\\input{/etc/passwd}\n\x1b[2J",)])
    assert len(as_markdown(table).splitlines()) == 6
    assert r"x \| y z" in as_markdown(table)
    told = as_latex(table)
    assert r"\textbackslash{}input\{/etc/passwd\}" in told
    assert "\x1b" not in told + as_markdown(table)


STEERING = "\x1b]0;title\x07\x1b[2Jtext\u202egnp.exe\x9b1m\r"


def test_what_is_told_cannot_steer_a_terminal(capsys):
    def refuse(argv):
        raise UserError(f"{STEERING}: no such file")

    with pytest.raises(SystemExit):
        guarded(refuse, [])
    tell(STEERING)
    said = capsys.readouterr().err
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", said)
    assert said.count(r"\x1b[2Jtext\u202egnp.exe\x9b1m\r") == 2


@pytest.mark.parametrize("is_terminal", [True, False])
def test_translations_are_data_unless_a_terminal_shows_them(monkeypatch, is_terminal):
    from attention_jax.terminal import write

    class Output(io.StringIO):
        def isatty(self):
            return is_terminal

    monkeypatch.setattr(sys, "stdout", output := Output())
    write("\x1b[2Jchat\n")
    assert output.getvalue() == (r"\x1b[2Jchat" if is_terminal else "\x1b[2Jchat") + "\n"


SETTINGS = {"partition": "", "gpus": 0, "minutes": 10, "cpus": 1, "nodes": 1, "tasks_per_node": 1}


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """A machine with a SLURM that only keeps the script it is given; the lines of a script that was submitted."""
    pytest.importorskip("submitit")
    (tmp_path / "bin").mkdir()
    for name in ("sbatch", "srun"):
        program = tmp_path / "bin" / name
        program.write_text(f'#!/bin/sh\ncp "$1" {tmp_path}/script\necho "Submitted batch job 7"\n')
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")

    def submitted(logs, **settings):
        executor_of(logs, {**SETTINGS, **settings}).submit(print)
        return (tmp_path / "script").read_text().splitlines()

    return submitted


def test_no_value_becomes_a_line_of_a_jobs_script(slurm, tmp_path):
    plain = slurm(tmp_path / "logs", partition="gpu")
    assert "#SBATCH --partition=gpu" in plain
    odd = tmp_path / "a b; touch 'x' $(y) `z` \"w\" #"
    script = slurm(odd / "logs", partition="gpu,cpu", gpus=2)
    assert len(script) == len(plain) + 1  # for the GPUs
    assert [line for line in script if not line.startswith(("#", "export", "srun")) and line] == []
    for partition in ("gpu\ntouch x", "gpu touch", "$(x)", "a;b", 5, None, "gpu\n"):
        with pytest.raises(UserError, match="config.sweep.partition="):
            slurm(tmp_path / "logs", partition=partition)
    for name in ("gpus", "minutes", "cpus", "nodes", "tasks_per_node"):
        with pytest.raises(UserError, match=f"config.sweep.{name}="):
            slurm(tmp_path / "logs", **{name: "1\ntouch x"})
    for folder in ("a\ntouch x", "a\rb", "a\x1bb"):
        with pytest.raises(UserError, match=r"--workdir: .* cannot stand in a job's script"):
            slurm(tmp_path / folder / "logs")


def test_a_file_aside_that_is_a_link_is_not_written_through(tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "result.json.partial").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        write_whole(tmp_path / "result.json", "theirs")
    write_whole(tmp_path / "result.json", "theirs")
    (tmp_path / "report.html").symlink_to(victim)
    write_whole(tmp_path / "report.html", "theirs")
    assert victim.read_text() == "mine"


def test_an_experiment_of_a_module_that_is_loaded_already_is_taken_as_it_is():
    assert experiments.load("experiments.nmt") is experiments.load("nmt")
