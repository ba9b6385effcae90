"""How far a model reaches: what is measured at every length, and what a sweep concludes, against loops over texts."""

import json
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict
from support import compiled

from attention_jax.data.algorithmic import SEP
from attention_jax.errors import UserError
from attention_jax.launcher import experiments
from attention_jax.launcher.modes import MODES
from attention_jax.reports.conclusion import FinishedCell
from attention_jax.runs.experiment import Request
from attention_jax.sweeps.space import grid, product, seeds
from attention_jax.tasks.language_model import algorithmic
from attention_jax.tasks.language_model.algorithmic import held_out
from attention_jax.tasks.language_model.reach import conclude, held_of_input, statistics_by_length
from attention_jax.tasks.language_model.session import Session
from configs import reach as configs
from experiments.reach import OPENERS

TINY = {
    "model.layers": 1,
    "model.width": 8,
    "model.heads": 2,
    "model.kv_heads": 2,
    "model.feed_forward": 8,
    "optimizer.warmup_steps": 2,
    "train.steps": 4,
    "train.steps_per_call": 4,
    "train.log_every": 4,
    "train.evaluate_every": 4,
    "train.checkpoint_every": 4,
    "data.length": 8,
    "data.shortest": 4,
    "data.symbols": 12,
    "data.batch": 4,
    "data.factors": (1.0, 2.0),
    "data.examples": 6,
    "statistics.rows": 3,
}


def tiny(variant="core", **overrides):
    config = configs.get_config(variant)
    config.update_from_flattened_dict(TINY | {name.replace("__", "."): value for name, value in overrides.items()})
    return config.lock()


@pytest.fixture(scope="module")
def opened():
    session = Session(tiny(model__positions="alibi"), None, OPENERS)
    return session, jax.jit(session.init)(jax.random.key(0))


def whole_texts(config, length, count):
    texts = held_out(config.data, length, count)
    return texts, jnp.concatenate([texts.tokens, texts.targets[:, -1:]], axis=1)


def test_accuracy_is_of_what_is_asked_for_alone_and_the_same_in_batches(opened, monkeypatch):
    session, variables = opened
    found = session.measure(variables, session.config)
    texts, tokens = whole_texts(session.config, 16, 6)
    guesses = np.argmax(compiled(session.model)(variables, tokens), -1)
    right = []
    for text, guess in zip(np.asarray(tokens), guesses, strict=True):
        queries = range(list(text).index(SEP) + 1, list(text).index(SEP) + 8, 2)  # four pairs in 16 tokens
        asked = [at + 1 for at in queries if text[at] not in text[queries[0] : at : 2]]
        right.append([guess[at - 1] == text[at] for at in asked])
    assert int(texts.is_counted.sum()) == sum(map(len, right)) < 6 * 4
    assert found["token_accuracy"]["16"] == pytest.approx(np.mean(np.concatenate(right)))
    assert found["exact_match"]["16"] == pytest.approx(np.mean([*map(all, right)]))
    monkeypatch.setattr(algorithmic, "TOKENS_AT_ONCE", 80)
    assert session.source.measure(session.model)(variables, session.config) == found


def test_no_map_of_weights_is_held_where_blocks_can_do_what_is_asked(opened):
    assert opened[0].model.backend == "chunked"
    assert Session(tiny(model__normalize="entmax15"), None, OPENERS).model.backend == "reference"


def test_statistics_are_those_of_the_weights_of_tokens_that_predict_an_answer(opened):
    session, variables = opened
    found = statistics_by_length(session, variables, session.config)
    for length in (8, 16):
        texts = held_out(session.config.data, length, 3)
        weights = np.asarray(session.attention(variables, texts.tokens, None), np.float64)
        entropies, distances, firsts = [], [], []
        for text, at in zip(*np.nonzero(texts.is_counted), strict=True):
            for row in weights[text, :, :, at].reshape(-1, weights.shape[-1]):
                entropies.append(-sum(weight * np.log(weight) for weight in row if weight > 0))
                distances.append(sum(weight * (at - key) for key, weight in enumerate(row)))
                firsts.append(row[0])
        expected = {"entropy": entropies, "distance": distances, "first": firsts}
        assert {name: by_length[str(length)] for name, by_length in found.items()} == pytest.approx(
            {name: np.mean(values) for name, values in expected.items()}, rel=1e-4
        )


def test_a_model_that_does_not_attend_has_no_statistics():
    session = Session(tiny(model__mixer="gru"), None, OPENERS)
    assert statistics_by_length(session, {}, session.config) == {}


def test_what_attention_holds_grows_with_the_input_and_a_state_does_not():
    held = {
        mixer: [held_of_input(Session(tiny(model__mixer=mixer), None, OPENERS).model, n) for n in (8, 16)]
        for mixer in ("attention", "gru", "convolution", "linear")
    }
    assert held["attention"] == [4 * 2 * 8 * n for n in (8, 16)]  # keys and values of width 8, float32
    assert held["gru"] == [4 * 8] * 2
    assert held["convolution"] == [4 * 4 * 8] * 2  # the last four tokens
    assert held["linear"][0] == held["linear"][1] >= 4 * 2 * 4 * 4  # a matrix a head


def cell(mixer, width, accuracy, tmp_path, statistics):
    curves = {
        name: {"8": value, "16": value / 2} for name, value in {"token_accuracy": accuracy, "exact_match": 0}.items()
    }
    member = {"curves": curves, "area": {"token_accuracy": 0.75 * accuracy}, "statistics": statistics}
    result = {"status": "finished", "seeds": [0, 1], "members": [member] * 2, "cost": {"held_bytes": width * 4}}
    config = ConfigDict({"model": {"mixer": mixer}, "data": {"length": 8, "factors": (1.0, 2.0)}})
    return FinishedCell(config, tmp_path, result, f"{mixer} {width}", "recall", "attention 8")


def test_a_sweep_concludes_with_curves_by_multiples_of_the_length_and_a_frontier(tmp_path):
    seen = {name: {"8": 1.0, "16": 2.0} for name in ("entropy", "distance", "first")}
    settings = {("attention", 8): (0.5, seen), ("attention", 16): (1.0, seen), ("gru", 2): (0.25, {})}
    cells = [cell(*setting, *found[:1], tmp_path, found[1]) for setting, found in settings.items()]
    palette = {cell.setting: "black" for cell in cells}
    found = conclude(tiny(), cells, tmp_path, palette)
    assert found.result["frontier"]["recall"]["attention"]["bytes"] == [32, 64]
    assert found.result["frontier"]["recall"]["attention"]["mean"] == [0.5, 1.0]
    assert found.result["frontier"]["recall"]["gru"]["mean"] == [0.25]
    assert [figure.path.stem for figure in found.figures] == [
        "reach_token_accuracy", "reach_exact_match", "spread", "frontier",
    ]  # fmt: skip
    table = found.tables[0]
    assert table.columns == ("task", "setting", "×1", "×2")
    assert [(row[1], row[2].mean, row[3].mean) for row in table.rows] == [
        ("attention 8", 0.5, 0.25), ("attention 16", 1.0, 0.5), ("gru 2", 0.25, 0.125),
    ]  # fmt: skip
    assert "frontier" not in conclude(tiny(), cells[:2], tmp_path, palette).result


@pytest.mark.parametrize("variant", configs.VARIANTS)
def test_every_cell_of_every_variant_can_be_used(variant):
    config, checked = configs.get_config(variant), set()
    for overrides in configs.sweep(variant):
        shown = tuple(str(value) for key, value in overrides.items() if key not in ("seeds", "model.width"))
        if shown not in checked:
            checked.add(shown)
            changed = ConfigDict(config.to_dict())
            changed.update_from_flattened_dict(overrides)
            experiments.load("reach").check(changed.lock())


def test_mixers_of_two_heads_hold_as_many_bytes_as_attention_of_the_trained_length():
    cells = configs.sweep("states", "mixers")
    assert all(cell in configs.sweep("states") for cell in cells)
    held = {}
    for overrides in cells[::5]:
        config = configs.get_config("states")
        config.update_from_flattened_dict({key: value for key, value in overrides.items() if key != "seeds"})
        held[config.model.mixer] = held_of_input(Session(config.lock(), None, OPENERS).model, config.data.length)
    assert held.keys() == {"attention", "retention", "linear", "gated_linear", "delta"}
    assert held.pop("linear") == 16_384 + 4 * 2 * 64  # and the sum of its keys, a number a feature and layer
    assert {*held.values()} == {16_384}
    with pytest.raises(ValueError, match="variant 'small' has no sweep 'mixers'"):
        configs.sweep("small", "mixers")


@pytest.mark.slow
def test_a_sweep_goes_from_config_to_page(tmp_path):
    config = tiny(sweep__engine="inline")
    space = product(grid("model.mixer", ("attention", "gru")), grid("model.positions", ("none",)), seeds(2))
    request = Request(config, tmp_path / "w", time.perf_counter(), False)
    request = request._replace(space=lambda: space, configure=lambda variant: config)
    MODES["sweep"](experiments.load("reach"), request)
    result = json.loads((tmp_path / "w" / "result.json").read_text())
    assert result["status"] == "finished"
    assert set(result["frontier"]["associative_recall"]) == {"attention", "gru"}
    assert {path.name for path in (tmp_path / "w" / "figures").glob("*.png")} >= {"spread.png", "frontier.png"}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"statistics__rows": -1}, "config.statistics.rows=-1: needs 0 or more"),
        ({"evaluate__positions": "spiral"}, "config.evaluate.positions='spiral': choose one of"),
        ({"data__task": "needel"}, "config.data.task='needel': choose one of"),
        ({"data__task": "variable_tracking"}, "config.data.shortest=4: task='variable_tracking' needs 16"),
        ({"data__task": "needles", "data__shortest": 8, "data__symbols": 9}, "config.data.symbols=9: task='needles'"),
        ({"data__factors": (0.25, 1.0)}, r"config.data.factors=.*gives inputs of 2 tokens, and task='associative_re"),
        ({"data__source": "text"}, "config.data.source='text': choose one of algorithmic"),
        ({"model__mixer": "lstm"}, "config.model.mixer='lstm': choose one of"),
    ],
)
def test_what_cannot_be_used_is_refused_by_its_key(overrides, message):
    with pytest.raises(UserError, match=message):
        experiments.load("reach").check(tiny(**overrides))


def test_a_section_with_a_key_that_nobody_reads_is_refused():
    config = configs.get_config()
    config.statistics.layers = 1
    with pytest.raises(UserError, match=r"config.statistics.layers: no such key; there are rows"):
        experiments.load("reach").check(config.lock())
