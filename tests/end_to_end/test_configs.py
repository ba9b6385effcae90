"""Every model and corpus of the configs is run small for three steps, every pair built whole, and every key read."""

import functools
import json
import time

import jax
import pytest
from ml_collections import ConfigDict
from support import ROOT
from texts import DOCUMENTS, write_jsonl
from translators import ONE_LAYER

from attention_jax.data.config import DataConfig
from attention_jax.data.grammar import sentence_pairs
from attention_jax.data.importing import export_to_tfds, require_usable
from attention_jax.data.tokenizers import SUBWORDS
from attention_jax.launcher import experiments
from attention_jax.launcher.modes import MODES
from attention_jax.runs.config import flatten
from attention_jax.runs.experiment import Request
from attention_jax.sweeps.settings import without_settings
from attention_jax.tasks.translation.model import build, init
from configs import (
    attention_variants,
    benchmark,
    explanation,
    heads,
    induction,
    kernel_regression,
    language_model,
    nmt,
    parametrization,
    positional_encoding,
    reach,
    search,
    sequence_layers,
)

TRANSLATION = [f"{model},embedded" for model in nmt.MODELS] + [f"bahdanau,{corpus}" for corpus in nmt.CORPORA]
TRANSLATION = list(dict.fromkeys(TRANSLATION))
PAIRS = [f"{model},{corpus}" for model in nmt.MODELS for corpus in nmt.CORPORA]
OTHERS = {
    "attention_variants": ("core",),
    "kernel_regression": (*kernel_regression.DATA, "attention", "in_context"),
    "heads": ("smoke",),
    "explanation": ("core",),
    "induction": ("two_layers,repeated", "two_layers,text"),
    "language_model": ("cpu,characters", "cpu,jsonl"),
    "parametrization": ("smoke",),
    "positional_encoding": ("core", "text"),
    "reach": ("core",),
    "sequence_layers": ("costs",),
}
VARIANTS = [(name, v) for name, vs in OTHERS.items() for v in vs] + [("nmt", v) for v in TRANSLATION]
# Beside one that differs from each of these in a few values.
LATER = (
    "sine_power", "attention", "sine_linear", "blobs", "cpu,jsonl", "transformer_book,embedded", "seq2seq,embedded",
    "bahdanau,multi30k", "luong_location,embedded", "transformer_small,embedded", "luong_local_p,embedded",
    "bahdanau,tatoeba_600", "bahdanau,tatoeba", "bahdanau,tsv", "bahdanau,parallel", "bahdanau,tfds", "core", "costs",
    "smoke", "two_layers,text",
)  # fmt: skip
ALIKE = (  # models that differ from one of these in their sizes, or in a score, alone; they have tests of their own
    "luong_dot,embedded", "luong_general,embedded", "luong_concat,embedded", "luong_local_m,embedded",
    "transformer_tiny,embedded", "transformer_base,embedded", "transformer_big,embedded",
)  # fmt: skip
RUN = [
    pytest.param(*pair, marks=[pytest.mark.slow] if pair[1] in LATER else [])
    for pair in VARIANTS
    if pair[1] not in ALIKE
]
DESCRIBED = [
    ("benchmark", "all"),
    ("kernel_regression", "blobs"),
    ("kernel_regression", "attention"),
    ("kernel_regression", "in_context"),
    pytest.param("language_model", "gpt2_small,bytes", marks=pytest.mark.slow),
    ("nmt", "transformer_book,embedded"),
    ("positional_encoding", "text"),
    ("sequence_layers", "costs"),
]
FILES = {
    "attention_variants": attention_variants,
    "benchmark": benchmark,
    "heads": heads,
    "explanation": explanation,
    "induction": induction,
    "kernel_regression": kernel_regression,
    "language_model": language_model,
    "nmt": nmt,
    "parametrization": parametrization,
    "positional_encoding": positional_encoding,
    "search": search,
    "reach": reach,
    "sequence_layers": sequence_layers,
}
LARGE = 20_000_000


SMALL = ONE_LAYER | {"width": 16, "feed_forward": 16, "embedding": 16, "hidden": 16}
LITTLE = {
    "draws": 3,
    "choosing": 2,
    "queries": 2,
    "vary.n": (4,),
    "vary.noise": (0.5,),
    "vary.dimensions": (2,),
    "features.counts": (4, 8),
    "features.widths": (1.0,),
    "learned.steps": 3,
    "optimizer.warmup_steps": 2,
    "model.layers": 1,
    "train.steps": 3,
    "train.evaluate_every": 3,
    "train.checkpoint_every": 3,
    "data.pairs": 2,
    "evaluate.pairs": (),
    "evaluate.estimators": ("attention", "kernel_ridge"),
    "evaluate.examples": 3,
    "evaluate.choosing": 2,
    "data.length": 6,
    "data.shortest": 4,
    "data.batch": 4,
    "data.factors": (1.0, 2.0),
    "data.examples": 2,
    "data.evaluated": 64,
    "data.sampled": 4,
    "lengths": (4, 8, 16),
    "widths": (2, 4, 8),
    "repeats": 1,
    "sentences": 4,
    "orders": 1,
    "couples": 4,
    "steps": 2,
}


def of_a_text(config, variant, tmp_path):
    config.model.update(layers=1, width=16, heads=2, kv_heads=2, feed_forward=16)
    config.data.path = write_jsonl(tmp_path / "all.jsonl", DOCUMENTS) if "jsonl" in variant else ""
    config.data.vocabulary, config.generate.tokens = 300, 5


def of_a_run(config, variant, tmp_path):
    run(short("nmt", "transformer_book,embedded", tmp_path), tmp_path / "trained")
    config.run = str(tmp_path / "trained")


def of_runs(config, variant, tmp_path):
    run(short("nmt", "luong_dot,embedded", tmp_path), tmp_path / "translator")
    config.runs = str(tmp_path / "translator")


def of_repeats(config, variant, tmp_path):
    config.data.length, config.train.evaluate_every = 16, 1
    config.model.update(width=16, heads=2, kv_heads=2)


SHORT = {"language_model": of_a_text, "heads": of_a_run, "explanation": of_runs, "induction": of_repeats}


def short(name, variant, tmp_path):
    """The config with little data and three steps."""
    config = without_settings(FILES[name].get_config(variant))
    if name == "nmt":
        return short_translator(config, tmp_path)
    config.update_from_flattened_dict({key: value for key, value in LITTLE.items() if key in flatten(config)})
    if name in SHORT:
        SHORT[name](config, variant, tmp_path)
    return config


def short_translator(config, tmp_path):
    pairs = list(sentence_pairs(1, 900))
    (tmp_path / "pairs.txt").write_text("".join(f"{p.source}\t{p.target}\n" for p in pairs), encoding="utf-8")
    data = config.data
    files = {"pairs": pairs, data.train_path: pairs, data.validation_path: pairs[:50], data.test_path: pairs[50:100]}
    for file, chosen in files.items():
        for language, side in zip(data.languages, ("source", "target"), strict=True):
            text = "".join(f"{getattr(pair, side)}\n" for pair in chosen)
            (tmp_path / f"{file}.{language}").write_text(text, encoding="utf-8")
    if data.source != "embedded":
        data.path = str(tmp_path / ("" if data.train_path else "pairs" if data.source == "parallel" else "pairs.txt"))
    if data.source.startswith("tfds:"):
        parallel = DataConfig(**nmt.CORPORA["parallel"])._replace(
            path=str(tmp_path / "pairs"), languages=data.languages
        )
        export_to_tfds(tmp_path / "tfds" / "pairs", parallel._replace(validation=50, test=50))
        data.source, data.path = "tfds:pairs", str(tmp_path / "tfds")
    if data.tokenizer in SUBWORDS:
        data.vocabulary = 400
    data.validation, data.test = 50, min(data.test, 50)
    data.max_length = min(data.max_length, 40)
    data.buckets = (data.max_length,)
    config.model.kwargs.update({key: size for key, size in SMALL.items() if key in config.model.kwargs})
    config.evaluate.examples = 1
    config.train.steps = config.train.evaluate_every = 3
    config.optimizer.warmup_steps = 2
    return config


def run(config, workdir, mode="train"):
    request = Request(config, workdir, time.perf_counter(), profile=False)
    MODES[mode](experiments.load(config.experiment), request)


@pytest.mark.parametrize(("name", "variant"), RUN)
def test_a_config_runs_and_every_key_of_it_is_read(name, variant, tmp_path, monkeypatch, capsys):
    if "multi30k" in variant:
        pytest.importorskip("spacy", reason="spaCy is optional")
    config = short(name, variant, tmp_path)
    description = experiments.load(config.experiment).describe(config)
    if sum(leaf.size for leaf in jax.tree.leaves(description.parameters)) > LARGE:
        return
    read = set()
    look_up = ConfigDict.__getitem__

    def recorded(self, key):
        read.add((id(self), key))
        return look_up(self, key)

    monkeypatch.setattr(ConfigDict, "__getitem__", recorded)
    monkeypatch.setattr("attention_jax.runs.folder.to_json", lambda config: "{}")  # writing is not reading
    monkeypatch.setattr("attention_jax.launcher.modes.to_json", lambda config: "{}")
    from attention_jax.runs.machine import set_up

    set_up(config.precision)
    run(config, tmp_path / "w")
    monkeypatch.undo()
    assert json.loads((tmp_path / "w" / "result.json").read_text())["status"] == "finished"
    unread = [key for key, owner in leaves(config) if (id(owner), key.rpartition(".")[2]) not in read]
    assert not unread


def leaves(config, prefix=""):
    for key in config:
        value = ConfigDict.__getitem__(config, key)
        if isinstance(value, ConfigDict):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", config


@pytest.mark.parametrize("variant", PAIRS)
def test_every_model_is_built_for_every_corpus(variant):
    config = nmt.get_config(variant)
    require_usable(DataConfig(**config.data))
    assert shapes(build(config, 100, 100))


@functools.cache
def shapes(model):
    """Of a model's parameters; models of many corpora are the same."""
    return jax.tree.leaves(jax.eval_shape(lambda: init(model, jax.random.key(0))))


@pytest.mark.parametrize(
    "variant", [f"{model},{corpus}" for model in language_model.MODELS for corpus in language_model.CORPORA]
)
def test_every_language_model_is_built_for_every_corpus(variant):
    config = language_model.get_config(variant)
    config.data.path = config.data.path or "texts"
    experiments.load("language_model").check(config)


@pytest.mark.parametrize(("name", "variant"), DESCRIBED)
def test_a_config_is_described_without_data(name, variant, tmp_path, capsys):
    config = FILES[name].get_config(variant)
    owner = config.model.get("kwargs", config.model) if "model" in config else {}
    owner.update({key: size for key, size in ONE_LAYER.items() if key in owner})
    run(config, tmp_path / "w", "describe")
    assert_described(capsys.readouterr().out, tmp_path)


def assert_described(out, tmp_path):
    assert "parameters " in out
    assert "memory a step" in out
    assert "FLOPs a step" in out
    assert not (tmp_path / "w").exists()


def test_a_translator_is_described_without_data_with_the_parameters_of_the_closed_form(tmp_path, capsys):
    config = nmt.get_config("bahdanau,tatoeba_600")
    config.data.vocabulary = v = 1000
    run(config, tmp_path / "w", "describe")
    d = 32
    gru = lambda inputs: 3 * d * (inputs + d) + 3 * d + d  # noqa: E731
    encoder, decoder = 2 * gru(d), gru(2 * d) + gru(d)
    expected = 2 * v * d + encoder + decoder + (2 * d * d + d) + (d * v + v)
    out = capsys.readouterr().out
    assert_described(out, tmp_path)
    assert f"parameters        {expected:,}\n" in out


@pytest.mark.slow
def test_the_base_transformer_is_described_with_the_parameters_and_the_cache_of_the_closed_form(tmp_path, capsys):
    config = nmt.get_config("transformer_base,embedded")
    config.data.vocabulary = v = 37_000
    run(config, tmp_path / "w", "describe")
    d, hidden, layers = 512, 2048, 6
    attention, feed_forward, norm = 4 * d * d, 2 * d * hidden + hidden + d, 2 * d
    expected = v * d + layers * (3 * attention + 2 * feed_forward + 5 * norm)
    out = capsys.readouterr().out
    assert f"parameters        {expected:,}\n" in out
    assert f"cache             {layers * 2 * d * 4:,} bytes a token\n" in out
    assert abs(expected / 65e6 - 1) < 0.04


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("*.py")), ids=lambda path: path.stem)
def test_a_configs_docstring_opens_with_the_command_that_runs_it(path):
    assert f"python launch.py --config=configs/{path.name}" in path.read_text(encoding="utf-8").split('"""')[1]


@pytest.mark.parametrize(
    ("name", "variant"), [*VARIANTS, ("benchmark", "all"), ("search", "regret"), ("search", "smoke")]
)
def test_a_config_holds_no_lists_and_no_none(name, variant):
    values = flatten(FILES[name].get_config(variant).to_dict()).values()
    assert not [value for value in values if value is None or isinstance(value, list)]
