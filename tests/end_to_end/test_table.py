"""The table of Multi30k is made of the kept results alone, with an interval where there are seeds."""

import json

import pytest
from absl import flags

from experiments import _table

KEPT = {
    "validation": {"perplexity_per_word": 6.5},
    "test": {
        "bleu": 30.0,
        "bleu_13a": 29.0,
        "chrf": 50.0,
        "bleu_by_length": {"5-9": 35.0, "10-15": 30.0},
        "beams": {"bleu": 31.0, "bleu_13a": 30.0, "chrf": 51.0},
    },
    "cost": {"parameters": 6_300_000, "flops": 2e14, "seconds": 600.0},
}


@pytest.fixture
def keep(tmp_path, monkeypatch):
    """Keep results of a model with some BLEU, a seed each."""
    monkeypatch.setattr(_table, "RESULTS", tmp_path)
    monkeypatch.setattr(_table, "FIGURE", tmp_path / "multi30k.png")

    def kept(model, *values):
        for seed, bleu in enumerate(values):
            result = KEPT | {"seeds": [seed], "test": KEPT["test"] | {"bleu": bleu}}
            (tmp_path / f"multi30k-{model}-{seed}.json").write_text(json.dumps(result), encoding="utf-8")

    return kept


def test_the_table_is_printed_and_drawn_from_the_kept_results(keep, capsys, tmp_path):
    flags.FLAGS.mark_as_parsed()
    keep("bahdanau", 39.04)
    keep("seq2seq", 21.0)
    _table.main([])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:]] == ["seq2seq", "bahdanau"]
    assert " 39.0 " in lines[-1]
    assert " 31.0 " in lines[-1]
    assert (tmp_path / "multi30k.png").stat().st_size > 0


def test_seeds_are_averaged_with_their_interval(keep):
    keep("bahdanau", 30.0, 32.0, 34.0)
    columns = _table.columns(next(row for row in _table.ROWS if row.model == "bahdanau"))
    assert columns["seeds"] == "3"
    assert columns["test BLEU, greedy"] == "32.0 [27.0, 37.0]"  # 32 ± 4.303 · 2 / √3
