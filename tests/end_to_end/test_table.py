"""The table of Multi30k is made of the kept results alone, with an interval where there are seeds."""

import json

import pytest
from absl import flags
from absl.testing import flagsaver

from experiments import _results, _table

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
    "code": {"commit": "0" * 7, "changed": False},
    "learning": {"step": [10, 20], "bleu": [12.0, 29.0]},
    "config": {"data": {"path": "elsewhere", "languages": ["de", "en"]}, "train": {"steps": 6000}, "seeds": [0]},
}


@pytest.fixture
def keep(tmp_path, monkeypatch):
    """Keep results of a model with some BLEU, a seed each."""
    flags.FLAGS.mark_as_parsed()
    monkeypatch.setattr(_results, "RESULTS", tmp_path)
    monkeypatch.setattr(_table, "FIGURES", tmp_path)

    def kept(model, *values):
        for seed, bleu in enumerate(values):
            result = KEPT | {"seeds": [seed], "test": KEPT["test"] | {"bleu": bleu}}
            result["config"] = KEPT["config"] | {f"only_{seed}": True}  # as of another version
            (tmp_path / f"multi30k-{model}-{seed}.json").write_text(json.dumps(result), encoding="utf-8")

    return kept


def test_the_table_is_printed_and_drawn_from_the_kept_results(keep, capsys, tmp_path):
    keep("bahdanau", 39.04)
    keep("seq2seq", 21.0)
    _table.main([])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:4]] == ["seq2seq", "bahdanau"]
    assert " 39.0 " in lines[3]
    assert " 31.0† " in lines[3]  # by a search of which this checkout knows nothing
    assert " 10‡ " in lines[3]
    assert lines[-1] == _table.EARLIER
    for figure in ("multi30k.png", "multi30k_learning.png"):
        assert (tmp_path / figure).stat().st_size > 0


def test_seeds_are_averaged_with_their_interval(keep):
    keep("bahdanau", 30.0, 32.0, 34.0)
    columns = _table.columns(next(row for row in _table.ROWS if row.model == "bahdanau"))
    assert columns["seeds"] == "3"
    assert columns["test BLEU, greedy"] == "32.0 [27.0, 37.0]"  # 32 ± 4.303 · 2 / √3


def test_a_difference_is_over_the_seeds_that_both_have(keep):
    keep("bahdanau", 30.0, 31.0, 33.0)
    keep("luong_concat", 31.0, 33.0)
    rows = {row.model: row for row in _table.ROWS}
    assert _table.difference(rows["luong_concat"]) == "+1.5 [−4.9, +7.9]"  # 1.5 ± 12.706 · .707 / √2
    assert _table.difference(rows["bahdanau"]) == ""


def test_a_result_of_another_recipe_is_refused_and_one_of_fewer_keys_is_not(keep):
    keep("bahdanau", 30.0)
    bahdanau = next(row for row in _table.ROWS if row.model == "bahdanau")
    _table.make(bahdanau, 0, "bahdanau-0")
    with pytest.raises(SystemExit, match=r"bahdanau-0.json: .*train.steps: 6000 there, 7 now"):
        _table.make(bahdanau._replace(overrides={"train.steps": 7}), 0, "bahdanau-0")


def test_a_row_that_does_not_exist_is_refused():
    flags.FLAGS.mark_as_parsed()
    with flagsaver.flagsaver(only=["bahdanua"]), pytest.raises(SystemExit, match="bahdanua: choose among bahdanau,"):
        _table.main([])
