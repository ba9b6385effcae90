"""The walls of the house: who may import whom, and what an import costs."""

import ast
import os
import re
import subprocess
import sys

import pytest
from support import ROOT

ROOMS = {
    "ops": set(),
    "backends": {"ops"},
    "modules": {"ops", "backends"},
    "models": {"ops", "backends", "modules"},
    "decoding": {"ops"},
    "data": set(),
    "evaluation": set(),
    "reports": {"evaluation"},
    "training": {"ops"},
    "tasks": {"ops", "backends", "modules", "models", "decoding", "data", "evaluation", "reports", "training"},
    "runs": {"training", "evaluation", "reports"},
    "sweeps": {"runs", "training", "evaluation", "reports"},
    "launcher": {"runs", "sweeps", "training", "reports"},  # and experiments, by name
}
# The one exception meant for users, how a file is written whole, what processes agree on, how one is stopped, where
# folders of stores are, and what a terminal is shown.
EVERYWHERE = {"errors", "files", "hosts", "stopping", "stores", "terminal"}
HEAVY = (
    "matplotlib",
    "tensorflow_datasets",
    "orbax",
    "sacrebleu",
    "tensorboardX",
    "scipy",
    "jinja2",
    "submitit",
    "optuna",
)


def imports(path):
    """Every module that a file imports, and whether the import runs with the file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    top = set(tree.body)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            names = [node.module] if node.module != "attention_jax" else [f"attention_jax.{a.name}" for a in node.names]
            yield from ((name, node in top) for name in names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, node in top) for alias in node.names)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_what_it_may(room):
    for path in (ROOT / "attention_jax" / room).rglob("*.py"):
        for module, _ in imports(path):
            everywhere = set() if room == "ops" else EVERYWHERE
            if module.startswith("attention_jax.") and module.split(".")[1] not in everywhere | {room}:
                assert module.split(".")[1] in ROOMS[room], f"{path} imports {module}"
            assert not module.startswith(("experiments", "configs")), f"{path} imports {module}"


def test_an_experiment_is_a_file_of_wiring_and_imports_no_other():
    for path in (path for path in (ROOT / "experiments").glob("*.py") if not path.name.startswith("_")):
        for module, _ in imports(path):
            assert not module.startswith(("experiments", "configs", "launch")), f"{path} imports {module}"


def test_launch_py_is_ten_lines_that_start_the_launcher():
    assert len((ROOT / "launch.py").read_text(encoding="utf-8").splitlines()) <= 10
    rooms = {module.split(".")[1] for module, _ in imports(ROOT / "launch.py") if module.startswith("attention_jax.")}
    assert rooms == {"launcher"}


def test_every_room_is_in_the_table():
    folders = {path.name for path in (ROOT / "attention_jax").iterdir() if (path / "__init__.py").exists()}
    assert folders == set(ROOMS)


def test_the_design_shows_this_table():
    page = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    rows = page.partition("| room | may import |")[2].partition("\n\n")[0]
    found = re.findall(r"^\| `(\w+)` \|(.*)\|$", rows, flags=re.MULTILINE)
    assert {room: set(re.findall(r"`(\w+)`", others)) for room, others in found} == ROOMS


def test_ops_need_jax_alone():
    for path in (ROOT / "attention_jax" / "ops").rglob("*.py"):
        for module, _ in imports(path):
            assert module.split(".")[0] in {*sys.stdlib_module_names, "jax", "jaxtyping", "numpy", "attention_jax"}, (
                path
            )


def test_heavy_packages_are_imported_where_they_are_used():
    for path in (ROOT / "attention_jax").rglob("*.py"):
        for module, at_import in imports(path):
            is_heavy = module.split(".")[0] in HEAVY or module.startswith("jax.experimental.pallas")
            assert not (at_import and is_heavy), f"{path} imports {module} at its top"


def test_importing_the_package_costs_little_more_than_jax():
    def seconds(statement):  # of a processor, whatever else it does meanwhile
        before = os.times()
        subprocess.run([sys.executable, "-c", statement], check=True, cwd=ROOT)
        return os.times().children_user - before.children_user

    rooms = "import attention_jax.ops.pooling, attention_jax.data.importing, attention_jax.reports.page"
    assert min(seconds(rooms) for _ in range(2)) < 1.5 * min(seconds("import jax") for _ in range(2)) + 0.5
