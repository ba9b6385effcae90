"""What key programs cost, beside what is stored: fails where one costs more, on a busy machine as on a quiet one.

    python tests/guard/check.py             # make bench-guard
    python tests/guard/check.py --store     # make bench-guard STORE=1

All is compiled for two CPU devices and nothing runs. What the compiler decides is judged under the release of jax that
the stored counts are of, and what the package itself decides under every one.
"""

import argparse
import json
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STORED = Path(__file__).with_name("stored.json")
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
# The same programs whatever the caller has set.
os.environ |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}

import attention_jax  # noqa: F401  # adds to XLA_FLAGS what the installed jaxlib needs

import jax
from tqdm import tqdm

from guard.counting import COUNTS, counts_of
from guard.judging import complaints, gains, judged, table
from guard.programs import PROGRAMS


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--store", action="store_true", help="keep the counts of now as those that are stored")
    asked = parser.parse_args()
    stored = json.loads(STORED.read_text(encoding="utf-8"))
    programs = tqdm(PROGRAMS.items(), desc="compiling", unit="program", disable=None)
    now = {name: counts_of(make()) for name, make in programs}
    print(table(stored["programs"], now, COUNTS))
    if asked.store:
        kept = {"jax": jax.__version__, "programs": now}
        STORED.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        return
    counts = judged(COUNTS, stored["jax"], jax.__version__)
    if counts != COUNTS:
        print(f"stored with jax {stored['jax']}, and this is {jax.__version__}: judged are only {', '.join(counts)}.")
    worse = complaints(stored["programs"], now, counts)
    for line in [*gains(stored["programs"], now, counts), *worse]:
        print(line)
    sys.exit(bool(worse))


if __name__ == "__main__":
    main()
