"""The launcher starts itself anew, once, for a tunable of glibc's that is read as a process starts."""

import os
import subprocess
import sys

import pytest
from support import ROOT

PROGRAM = """
import os, sys
print(os.getpid(), os.environ.get("GLIBC_TUNABLES"), *sys.argv, flush=True)
from attention_jax.launcher.__main__ import ask_for_huge_pages
ask_for_huge_pages()
print(input())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc is Linux's")
@pytest.mark.parametrize(
    ("given", "seen"),
    [
        (None, "glibc.malloc.hugetlb=1"),
        ("glibc.malloc.check=0", "glibc.malloc.check=0:glibc.malloc.hugetlb=1"),
        ("glibc.malloc.hugetlb=0", None),
    ],
)
def test_it_is_the_same_process_with_the_same_arguments_and_input_and_the_users_tunables(given, seen):
    environment = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    environment |= {"GLIBC_TUNABLES": given} if given else {}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "an argument"],
        cwd=ROOT,
        env=environment,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    out, _ = process.communicate("a line\n")
    starts = [tunables for tunables in (given or "None", seen) if tunables]
    assert out.splitlines() == [*(f"{process.pid} {tunables} -c an argument" for tunables in starts), "a line"]
