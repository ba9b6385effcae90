"""Peers: scripts in processes of their own, asked once a round, left out where what they need is not installed."""

import ast
from pathlib import Path

import pytest

from attention_jax.errors import UserError
from attention_jax.tasks.benchmark.peers import Asked, Peers

ECHO = """
import json, sys
for number, line in enumerate(sys.stdin):
    print(json.dumps({"number": number, "flags": sys.argv[1:]}), flush=True)
"""


@pytest.fixture
def peers(tmp_path):
    (tmp_path / "echo.py").write_text(ECHO)
    (tmp_path / "broken.py").write_text("raise SystemExit('no such model')")
    return Peers(tmp_path)


def test_a_peer_measures_once_for_each_time_that_it_is_asked(peers):
    with peers.running({"one": Asked("echo.py", "json", {"batch": 64})}) as running:
        found = [running["one"].ask() for _ in range(2)]
    assert [each["number"] for each in found] == [0, 1]
    assert found[0]["flags"] == ["--batch=64"]


def test_a_peer_whose_package_is_not_installed_is_left_out(peers):
    with peers.running(
        {"one": Asked("echo.py", "no_such_package", {}), "other": Asked("echo.py", "json", {})}
    ) as running:
        assert list(running) == ["other"]


def test_a_peer_that_ends_is_told_with_its_last_line(peers):
    with peers.running({"one": Asked("broken.py", "json", {})}) as running, pytest.raises(UserError) as told:
        running["one"].ask()
    assert str(told.value).endswith("broken.py: no such model.")


def test_a_python_that_is_not_there_is_refused_by_its_key(tmp_path):
    with pytest.raises(UserError, match="config.peers='/nowhere/python'"):
        Peers(tmp_path, "/nowhere/python").has("json")


def test_what_one_script_imports_of_another_is_there():
    scripts = {path.stem: ast.parse(path.read_text()) for path in Path("experiments/_peers").glob("*.py")}
    imports = [node for tree in scripts.values() for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    asked = {(node.module, name.name) for node in imports if node.module in scripts for name in node.names}
    assert asked
    for module, name in asked:
        assert name in {node.name for node in scripts[module].body if hasattr(node, "name")}, (module, name)
