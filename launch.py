"""The launcher of a checkout: python launch.py --help."""

import sys
from pathlib import Path

from attention_jax.launcher.__main__ import main

if __name__ == "__main__":
    main((sys.executable, str(Path(__file__).resolve())))
