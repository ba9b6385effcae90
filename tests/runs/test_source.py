"""What a file says is the same for every Python, however it is laid out, and what it imports is found."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT

from attention_jax.runs import source
from attention_jax.runs.source import read_source

# Of f-strings, whose texts Pythons divide differently; and of what an older Python has no field for.
WAYS = r"""
x = f"a{w}" "b" f"{w!r:>{w}}{w=}" 'c' f"{w:}{w:{w}.{w}f}" f'{"q"}' f"" "" f"x" rf"\d{w}{{}}"
y = b"\0", 1e-3, 1j, None, ...
class A(B):
    def f(self, *, x=None) -> int: ...
"""
READING = Path(__file__).with_name("reading.py")


def pythons():
    """The Pythons of this machine that this project runs on: of the path and of pyenv."""
    found = [shutil.which(f"python3.{minor}") for minor in range(11, 15)]
    if shutil.which("pyenv"):
        root = subprocess.run(["pyenv", "root"], capture_output=True, text=True, check=True).stdout.strip()
        found += map(str, Path(root).glob("versions/3.1[1-9]*/bin/python"))
    return [sys.executable, *filter(None, found)]


def test_every_python_reads_the_same_of_every_file(tmp_path):
    (tmp_path / "ways.py").write_text(WAYS)
    files = [*ROOT.glob("attention_jax/**/*.py"), *ROOT.glob("tests/runs/*.py"), tmp_path / "ways.py"]
    said = {}
    for python in pythons():
        asked = {"input": "\n".join(map(str, files)), "capture_output": True, "text": True}
        version = subprocess.run([python, "--version"], **asked).stdout
        if version and version not in said:
            said[version] = subprocess.run([python, READING, source.__file__], check=True, **asked).stdout
    if len(said) == 1:
        pytest.skip(f"there is no other Python here than {sys.version}")
    assert len({*said.values()}) == 1
    assert len(said.popitem()[1].splitlines()) == len(files)


def test_comments_layout_docstrings_errors_texts_and_what_is_for_a_type_checker_say_nothing():
    bare = "import typing\nclass A:\n    def f(self): return 'a' 'b'\n"
    bare += "if x:\n    import z\nelse:\n    y = 1\nraise B('', w, 1)\n"
    told = '''"""What it is."""
import typing  # of the library

if typing.TYPE_CHECKING:
    from launcher import far


class A:
    """A class."""

    def f(self):
        """A function."""
        return "ab"


if x:
    import z
else:
    y = 1
raise B(f"{x}: no, {y}.", w, 1)
'''
    assert read_source(bare) == read_source(told)
    for one, other in (("'b'", "'c'"), ("y = 1", "y = 2"), ("z", "a"), ("B", "C"), ("w", "v"), ("w, 1", "w, 2")):
        assert read_source(bare.replace(one, other)).meaning != read_source(bare).meaning


@pytest.mark.parametrize(
    ("line", "module"),
    [
        ("import a.b", "a.b"),
        ("import a.b as c", "a.b"),
        ("from a import b", "a.b"),
        ("from a.b import *", "a.b"),
        ("from . import c", "mylab.part.c"),
        ("from .c import d", "mylab.part.c"),
        ("from .. import c", "mylab.c"),
        ("from ..c.d import e", "mylab.c.d"),
        ("def f():\n    import a", "a"),
        ("try:\n    import a\nexcept ImportError:\n    import b", "b"),
        ("try:\n    from a import b\nexcept ImportError:\n    from c import b", "a.b"),
        ("import a\nx = a.b.c.f(1)", "a.b.c.f"),
        ("import a as z\ndef f(): z.b.c[0].d()", "a.b.c"),
        ("from a import b\nb.c.d", "a.b.c.d"),
        ("from . import c as d\nd.e()", "mylab.part.c.e"),
    ],
)
def test_what_a_file_imports_is_found(line, module):
    assert any(f"{name}.".startswith(f"{module}.") for name in read_source(line, "mylab.part").imports)


def test_what_cannot_be_imported_is_left_to_python():
    assert read_source("from . import a", "").imports == ()
    assert read_source("from ... import a", "mylab").imports == ()
