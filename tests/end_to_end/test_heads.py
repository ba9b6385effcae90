"""Heads of a finished run are measured by a command; what cannot be measured is refused before any work."""

import json

import pytest

from attention_jax.errors import UserError
from attention_jax.launcher import experiments
from attention_jax.runs.folder import to_json
from configs import heads as configs
from configs import nmt

TINY = {
    "data.validation": 12,
    "data.test": 12,
    "model.kwargs.encoder_layers": 1,
    "model.kwargs.decoder_layers": 1,
    "model.kwargs.width": 8,
    "model.kwargs.heads": 2,
    "model.kwargs.kv_heads": 2,
    "optimizer.warmup_steps": 2,
    "train.steps": 4,
    "train.steps_per_call": 2,
    "train.log_every": 4,
    "train.evaluate_every": 4,
    "train.checkpoint_every": 4,
}
FIGURES = {"worth", "agreement", "pruning", "roles", "carried"}


@pytest.mark.slow
def test_the_heads_of_every_seed_of_a_run_are_measured_and_drawn(launcher, tmp_path):
    trained, measured = tmp_path / "trained", tmp_path / "measured"
    asked = {"config": "configs/nmt.py:transformer_book,embedded", "seeds": "0,1", **TINY}
    assert launcher.run(trained, **asked).returncode == 0
    before = (trained / "result.json").read_text()
    process = launcher.run(measured, config="configs/heads.py:smoke", run=trained, sentences=6, couples=4)
    assert process.returncode == 0, process.err
    result = json.loads((measured / "result.json").read_text())
    assert result["status"] == "finished"
    assert result["seeds"] == [0, 1]
    of_head = result["heads"]["encoder"]["1"]["2"]
    assert of_head.keys() == {"change", "estimate", "bleu_change", "positional", "rare", "recovered"}
    low, high = result["ci95"]["heads"]["cross"]["1"]["1"]["recovered"]
    assert low <= result["heads"]["cross"]["1"]["1"]["recovered"] <= high
    assert result["patching"]["together"]["cross"] == pytest.approx(1, abs=1e-3)
    curves = result["pruning"]
    assert curves.keys() == {"exact", "estimate", "random", "encoder", "decoder", "cross"}
    assert len({round(curves[name]["6"], 5) for name in ("exact", "estimate", "random")}) == 1  # all heads are gone
    assert result["pruned"].keys() == {"exact", "estimate", "random"}
    for curve in result["pruned"].values():
        assert [*curve] == [str(removed) for removed in range(7)]
        assert curve["0"]["bleu"] == pytest.approx(result["bleu"])
        assert curve["6"]["bleu"] == pytest.approx(result["pruned"]["random"]["6"]["bleu"])
    for one in result["members"]:
        layers = [layer for kind in one["heads"].values() for layer in kind.values()]
        without_one = [one["bleu"] + head["bleu_change"] for layer in layers for head in layer.values()]
        for order in ("exact", "estimate"):
            assert any(one["pruned"][order]["1"]["bleu"] == pytest.approx(bleu) for bleu in without_one)
    assert {path.stem for path in (measured / "figures").glob("*.png")} == FIGURES
    page = (measured / "report.html").read_text()
    assert "Every head: means over seeds 0, 1" in page
    assert '"kind": "cross"' in (measured / "heads.html").read_text()
    assert (trained / "result.json").read_text() == before


def stored(folder, variant, is_finished=True, **changes):
    """The folder of a run that was never trained: its config, and a result if it is to look finished."""
    config = nmt.get_config(variant)
    config.update_from_flattened_dict({name.replace("__", "."): value for name, value in changes.items()})
    folder.mkdir()
    (folder / "config.json").write_text(to_json(config))
    if is_finished:
        (folder / "result.json").write_text("{}")
    return str(folder)


def refusal(**values):
    config = configs.get_config()
    config.update(values)
    with pytest.raises(UserError) as error:
        experiments.load("heads").check(config)
    return str(error.value)


def test_a_run_that_has_no_heads_or_is_not_finished_is_refused_by_name(tmp_path):
    assert "config.run='': name the folder of a finished run" in refusal()
    assert "no run there" in refusal(run=str(tmp_path / "nowhere"))
    recurrent = stored(tmp_path / "recurrent", "bahdanau,embedded")
    assert "recurrent': 'recurrent' is a model without heads" in refusal(run=recurrent)
    unfinished = stored(tmp_path / "unfinished", "transformer_book,embedded", is_finished=False)
    assert "unfinished': not finished. Go on with it: --mode=train --workdir=" in refusal(run=unfinished)


def test_a_run_with_another_result_is_another_one_to_a_sweep(tmp_path):
    config = configs.get_config()
    config.run = stored(tmp_path / "run", "transformer_book,embedded")
    identify = experiments.load("heads").identify
    before = identify(config)
    assert identify(config) == before
    (tmp_path / "run" / "result.json").write_text('{"seeds": [0, 1]}')
    assert identify(config) != before


def test_what_needs_the_truth_of_the_grammar_is_refused_without_it(tmp_path):
    run = stored(tmp_path / "run", "transformer_book,tsv", data__path="pairs.txt")
    assert "patching needs the embedded corpus" in refusal(run=run)
    config = configs.get_config()
    config.update(run=run, parts=("removing", "roles"))
    experiments.load("heads").check(config)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("parts", ("pruning",), "config.parts: no part 'pruning': choose of removing, roles, patching"),
        ("parts", (), "config.parts=(): choose of removing"),
        ("couples", 0, "config.couples=0: needs 1 or more"),
        ("split", "train", "config.split='train': choose validation or test"),
        ("tolerance", -1.0, "config.tolerance=-1.0: needs 0 or more"),
    ],
)
def test_a_value_that_cannot_be_used_is_refused_by_its_key(key, value, message):
    assert message in refusal(**{key: value})
