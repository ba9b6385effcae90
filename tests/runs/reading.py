"""A digest of every file that is named on standard input, by whichever Python runs this; see test_source.py."""

import hashlib
import runpy
import sys

read_source = runpy.run_path(sys.argv[1])["read_source"]
for name in sys.stdin.read().splitlines():
    with open(name, encoding="utf-8") as file:
        source = read_source(file.read(), "package")
    print(name, hashlib.sha256(repr(source[:]).encode()).hexdigest())
