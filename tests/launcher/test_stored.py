"""A run of another version is refused at one place: which key it is, which version wrote it, and how to get that."""

import json

import pytest

import attention_jax
from attention_jax.errors import UserError
from attention_jax.launcher import experiments, stored
from attention_jax.sweeps.comparing import compare_runs
from configs import language_model, nmt, positional_encoding

TRANSFORMER = nmt.get_config("transformer_tiny,tatoeba")
TEXTS = language_model.get_config()
ADVICE = "Use the version that finished it: git checkout 1a2b3c4."


def folder_of(path, config, key="", value=None, result=True):
    """The folder of a run whose config has another value at a key, or lacks it."""
    tree = config.to_dict()
    *sections, last = key.split(".")
    owner = tree
    for section in sections:
        owner = owner[section]
    owner.pop(last, None)
    if value is not None:
        owner[last] = value
    path.mkdir()
    (path / "config.json").write_text(json.dumps(tree))
    if result:
        code = {"commit": "1a2b3c4", "changed": False}
        (path / "result.json").write_text(json.dumps({"status": "finished", "seeds": [0], "code": code}))
    return path


@pytest.mark.parametrize(
    ("config", "key", "value", "what"),
    [
        (TRANSFORMER, "evaluate.test_beams", None, "the config has no 'evaluate.test_beams'."),
        (TRANSFORMER, "evaluate.beam_width", 5, "config.evaluate.beam_width: no such key; there are bleu_tokens, "),
        (TRANSFORMER, "model.kwargs.backend", None, "the config has no 'model.kwargs.backend'."),
        (TRANSFORMER, "model.kwargs.depth", 2, "config.model.kwargs.depth: no such key"),
        (TRANSFORMER, "model.name", "bahdanau", "config.model.name='bahdanau': choose one of recurrent, transformer."),
        (TRANSFORMER, "data.on_device", None, "the config has no 'data.on_device'."),
        (TRANSFORMER, "train.patience", 3, "config.train.patience: no such key; there are steps, "),
        (TRANSFORMER, "optimizer.decay_steps", None, "the config has no 'decay_steps'."),
        (TEXTS, "model.score", None, "the config has no 'model.score'."),
        (TEXTS, "generate.context", None, "the config has no 'generate.context'."),
        (TEXTS, "data.packing", None, "the config has no 'packing'."),
        (positional_encoding.get_config(), "evaluate", {}, "the config has no 'evaluate.positions'."),
    ],
)
def test_a_key_that_another_version_had_or_lacked_is_told_in_a_line_with_its_commit(config, key, value, what, tmp_path):
    path = folder_of(tmp_path / "run", config, key, value)
    message = f"run: started by another version .*: {what}.*{ADVICE}"
    for open_run in (attention_jax.load, stored.read, lambda path: stored.get_config(str(path))):
        with pytest.raises(UserError, match=message) as told:
            open_run(path)
        assert "\n" not in str(told.value)


def test_runs_are_not_compared_where_one_is_of_another_version(tmp_path):
    paths = [
        folder_of(tmp_path / "now", TRANSFORMER),
        folder_of(tmp_path / "before", TRANSFORMER, "evaluate.test_beams"),
    ]
    with pytest.raises(UserError, match=f"before: started by another version .*'evaluate.test_beams'.*{ADVICE}"):
        compare_runs(experiments.load("nmt"), paths)


def test_without_a_result_no_commit_is_known_and_a_run_of_this_version_is_read(tmp_path):
    path = folder_of(tmp_path / "begun", TRANSFORMER, "evaluate.test_beams", result=False)
    with pytest.raises(UserError, match="Use the version that started it; no result.json tells its commit"):
        stored.read(path)
    assert stored.read(folder_of(tmp_path / "now", TRANSFORMER)) == TRANSFORMER.lock()


@pytest.mark.parametrize("made", [nmt.get_config, language_model.get_config, positional_encoding.get_config])
def test_the_keys_that_are_read_are_those_of_the_configs(made):
    config = made()
    experiments.load(config.experiment).check(config)


def test_of_the_versions_that_had_a_part_in_a_run_the_last_is_named(tmp_path):
    path = folder_of(tmp_path / "run", TEXTS, "model.score")
    result = json.loads((path / "result.json").read_text())
    code = [{"commit": "9f9f9f9", "changed": False}, result["code"]]
    (path / "result.json").write_text(json.dumps(result | {"code": code}))
    with pytest.raises(UserError, match=ADVICE):
        stored.read(path)
