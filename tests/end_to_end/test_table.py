"""The table of Multi30k is made of the kept results alone, with an interval where there are seeds."""

import json
import subprocess
import sys

from support import ROOT

from experiments import _table


def test_the_table_is_printed_from_the_kept_results():
    command = [sys.executable, "-m", "experiments._table"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    kept = json.loads((_table.RESULTS / "multi30k-bahdanau-0.json").read_text(encoding="utf-8"))
    (line,) = (line for line in process.stdout.splitlines() if "bahdanau" in line)
    assert f" {kept['test']['bleu']:.1f} " in line
    assert f" {kept['test']['beams']['bleu']:.1f} " in line


def test_seeds_are_averaged_with_their_interval(tmp_path, monkeypatch):
    kept = json.loads((_table.RESULTS / "multi30k-bahdanau-0.json").read_text(encoding="utf-8"))
    for seed, bleu in enumerate((30.0, 32.0, 34.0)):
        kept["test"]["bleu"] = bleu
        (tmp_path / f"multi30k-bahdanau-{seed}.json").write_text(json.dumps(kept), encoding="utf-8")
    monkeypatch.setattr(_table, "RESULTS", tmp_path)
    row = next(row for row in _table.ROWS if row.model == "bahdanau")
    columns = _table.columns(row)
    assert columns["seeds"] == "3"
    assert columns["test BLEU, greedy"] == "32.0 [27.0, 37.0]"  # 32 ± 4.303 · 2 / √3
