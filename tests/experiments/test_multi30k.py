"""The table of Multi30k is made of the kept answer alone, with an interval where there are seeds."""

import json

import pytest

from configs.nmt import get_config, multi30k
from experiments import _multi30k, _results

METRICS = {
    "validation.perplexity_per_word": 6.5,
    "test.bleu_13a": 29.0,
    "test.chrf": 50.0,
    "test.bleu_by_length.5-9": 35.0,
    "test.bleu_by_length.10-15": 30.0,
    "test.beams.bleu": 31.0,
    "cost.parameters": 6_300_000,
    "cost.flops": 2e14,
    "cost.seconds": 600.0,
}


@pytest.fixture
def keep(tmp_path, monkeypatch):
    """Keep an answer: of each model its BLEU by seed."""
    monkeypatch.setattr(_results, "RESULTS", tmp_path)
    monkeypatch.setattr(_multi30k, "FIGURES", tmp_path)

    def kept(models, **more):
        cells = [
            {
                "overrides": {"variant": f"{model},multi30k", **more},
                "seed": seed,
                "commit": "0" * 7,
                "metrics": {**METRICS, "test.bleu": bleu},
                "learning": [[10, 12.0], [20, 29.0]],
            }
            for model, values in models.items()
            for seed, bleu in enumerate(values)
        ]
        (tmp_path / "multi30k.json").write_text(json.dumps({"cells": cells}), encoding="utf-8")

    return kept


def test_the_table_is_printed_and_drawn_from_the_kept_answer(keep, capsys, tmp_path):
    keep({"seq2seq": [21.0], "bahdanau": [39.04]})
    _multi30k.main([])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("|")[1].strip() for line in lines[2:4]] == ["seq2seq", "bahdanau"]
    assert " 39.0 " in lines[3]
    assert " 31.0† " in lines[3]  # by a search of which this checkout knows nothing
    assert " 10‡ " in lines[3]
    assert lines[-1] == _multi30k.EARLIER
    for figure in ("multi30k.png", "multi30k_learning.png"):
        assert (tmp_path / figure).stat().st_size > 0


def test_seeds_are_averaged_and_differences_are_over_the_seeds_that_both_have_each_with_its_interval(keep):
    keep({"bahdanau": [30.0, 32.0, 34.0], "luong_concat": [31.0, 34.0]})
    first, second = _multi30k.table_of(_multi30k.read())
    assert first["seeds"] == "3"
    assert first["test BLEU, greedy"] == "32.0 [27.0, 37.0]"  # 32 ± 4.303 · 2 / √3
    assert first["− bahdanau"] == ""
    assert second["− bahdanau"] == "+1.5 [−4.9, +7.9]"  # 1.5 ± 12.706 · .707 / √2


def test_a_model_with_a_protocol_of_its_own_is_not_compared(keep):
    keep({"bahdanau": [30.0], "transformer_tiny": [31.0]}, **{"data.languages": ["en", "de"]})
    assert [line["− bahdanau"] for line in _multi30k.table_of(_multi30k.read())] == ["", ""]


def test_what_is_kept_is_of_the_sweep_that_the_config_has():
    kept = json.loads((_results.RESULTS / "multi30k.json").read_text(encoding="utf-8"))
    asked = json.loads(json.dumps(multi30k("")))
    assert [{**cell["overrides"], "seeds": [cell["seed"]]} for cell in kept["cells"]] == asked
    for overrides in multi30k(""):
        config = get_config(overrides["variant"])
        config.update_from_flattened_dict({key: value for key, value in overrides.items() if key != "variant"})
