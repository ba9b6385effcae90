"""A tiny sweep over position encodings: one program serves all tasks, and the answer is that of its cells."""

import json
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import compiled

import attention_jax
from attention_jax.data.algorithmic import END, SEP
from attention_jax.errors import UserError
from attention_jax.evaluation.statistics import mean_interval
from attention_jax.launcher import experiments
from attention_jax.launcher.modes import MODES
from attention_jax.runs.experiment import Request
from attention_jax.sweeps.folder import open_sweep, read_result
from attention_jax.sweeps.space import grid, product, seeds
from attention_jax.tasks.language_model.algorithmic import held_out
from attention_jax.tasks.language_model.model import build
from attention_jax.tasks.language_model.portraits import portrait
from attention_jax.tasks.language_model.session import Session
from attention_jax.training.saved import best_variables
from configs import positional_encoding as configs
from experiments.positional_encoding import OPENERS

TINY = {
    "model.layers": 1,
    "model.width": 8,
    "model.heads": 2,
    "model.kv_heads": 2,
    "model.feed_forward": 8,
    "optimizer.warmup_steps": 2,
    "train.steps": 8,
    "train.steps_per_call": 4,
    "train.log_every": 4,
    "train.evaluate_every": 8,
    "train.checkpoint_every": 8,
    "data.length": 6,
    "data.batch": 4,
    "data.factors": (1.0, 2.0),
}
ALGORITHMIC = {"data.examples": 8}
TEXT = {"data.evaluated": 256, "data.sampled": 16, "data.length": 16, "data.factors": (1.0, 2.0)}


def tiny(variant="core", **overrides):
    config = configs.get_config(variant)
    values = TINY | (TEXT if variant == "text" else ALGORITHMIC)
    config.update_from_flattened_dict(values | {name.replace("__", "."): value for name, value in overrides.items()})
    return config.lock()


def launch(mode, config, workdir, space=None):
    request = Request(config, workdir, time.perf_counter(), False)
    if space is not None:
        request = request._replace(space=lambda: space, configure=lambda variant: config)
    MODES[mode](experiments.load(config.experiment), request)


@pytest.fixture(scope="module")
def answered(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encodings") / "sweep"
    names, tasks = ("alibi", "randomized_learned:longest=40"), ("copy", "parity")
    space = product(grid("model.positions", names), grid("data.task", tasks), seeds(2))
    launch("sweep", tiny(sweep__engine="inline"), folder, space)
    return folder


@pytest.mark.slow
def test_curves_ranks_and_orders_are_those_of_the_cells(answered):
    result = json.loads((answered / "result.json").read_text())
    sweep = open_sweep(experiments.load("positional_encoding"), answered)
    assert result["status"] == "finished"
    areas: dict = {}
    for name in sweep.plan.cells:
        config, cell = sweep.config_of(name), read_result(sweep.cell(name))
        areas.setdefault(config.data.task, {}).setdefault(config.model.positions, []).append(cell)
    for task, names in areas.items():
        for name, cells in names.items():
            curve = result["curves"][name][task]
            assert curve["length"] == [6, 12]
            expected = [
                mean_interval([cell["curves"]["token_accuracy"][str(n)] for cell in cells]) for n in curve["length"]
            ]
            np.testing.assert_allclose(np.array([curve[k] for k in ("mean", "low", "high")]).T, np.clip(expected, 0, 1))
        order = result["orders"][task]
        assert [row["mean"] for row in order] == sorted((row["mean"] for row in order), reverse=True)
    per_seed = []
    for seed in range(2):
        heights = {name: [areas[t][name][seed]["area"]["token_accuracy"] for t in areas] for name in result["mrr"]}
        better = {
            name: np.mean([1 / np.mean([k + 1 for k, h in enumerate(sorted(
                (other[t] for other in heights.values()), reverse=True)) if h == own[t]]) for t in range(len(areas))])
            for name, own in heights.items()
        }  # fmt: skip
        per_seed.append(better)
    for name, found in result["mrr"].items():
        assert found["mean"] == pytest.approx(np.mean([better[name] for better in per_seed]))


@pytest.mark.slow
def test_tasks_share_a_program_and_are_compared_each_for_itself(answered):
    sweep = open_sweep(experiments.load("positional_encoding"), answered)
    assert len(sweep.plan.programs) == 2
    rows = [
        line for line in (answered / "table.md").read_text().splitlines() if line.startswith("|") and "baseline" in line
    ]
    assert len(rows) == 2
    assert all("alibi" in row for row in rows)
    page = (answered / "report.html").read_text()
    assert "Mean reciprocal rank" in page
    assert {path.name for path in (answered / "figures").glob("*.png")} >= {
        "extrapolation_token_accuracy.png", "extrapolation_exact_match.png", "biases.png", "similarity.png",
        "attention.png", "encodings.png",
    }  # fmt: skip


def test_accuracy_is_that_of_a_loop_over_the_held_out_texts():
    config = tiny(model__positions="alibi", data__task="reverse")
    session = Session(config, None, OPENERS)
    model, variables = session.model, jax.jit(session.init)(jax.random.key(0))
    found = session.measure(variables, config)
    texts = held_out(config.data, 12, 8)
    tokens = np.concatenate([texts.tokens, texts.targets[:, -1:]], axis=1)
    guesses = np.argmax(compiled(model)(variables, tokens), -1)
    right, whole = [], []
    for text, guess in zip(np.asarray(tokens), guesses, strict=True):
        first, last = list(text).index(SEP) + 1, list(text).index(END)
        hits = [guess[position - 1] == text[position] for position in range(first, last + 1)]
        right += hits
        whole.append(all(hits))
    assert found["token_accuracy"]["12"] == pytest.approx(np.mean(right))
    assert found["exact_match"]["12"] == pytest.approx(np.mean(whole))


def test_sliding_perplexity_is_that_of_single_tokens_with_all_their_context(tmp_path, monkeypatch):
    at_once = "attention_jax.tasks.language_model.text.TOKENS_AT_ONCE"
    monkeypatch.setattr(at_once, 48)  # batches that do not come out even
    config = tiny("text", model__positions="alibi")
    session = Session(config, tmp_path / "data", OPENERS)
    model, variables = session.model, jax.jit(session.init)(jax.random.key(0))
    found = session.measure(variables, config)
    text = np.load(tmp_path / "data" / "validation.npy").astype(np.int32)
    last = np.random.default_rng(config.data.seed).integers(32, len(text), 16)
    for context in (16, 32):
        logits = compiled(model)(variables, jnp.stack([text[p - context : p] for p in last]))[:, -1]
        losses = -jax.nn.log_softmax(logits)[np.arange(16), text[last]]
        assert found["perplexity_sliding"][str(context)] == pytest.approx(float(np.exp(losses.mean())), rel=1e-4)


def test_a_run_on_a_text_can_be_opened_writes_and_is_told_by_its_tokenizer(tmp_path):
    (tmp_path / "text.txt").write_text("the cat is not black .\n" * 100)
    changes = {"data__path": str(tmp_path / "text.txt"), "data__held_out": 0.5, "data__evaluated": 64, "seeds": (0,)}
    config = tiny("text", **changes, model__positions="alibi", train__steps=4)
    launch("train", config, tmp_path / "w")
    run = attention_jax.load(tmp_path / "w")
    assert run.tokens("the cat").shape == (1, 7)
    written = run.generate("the ", tokens=9, temperature=0.0)
    assert written.startswith("the ")
    assert len(written.rstrip("\n")) <= len("the ") + 9
    with pytest.raises(UserError, match=r"generate\(temprature=…\): no such key. Choose of context, prompts, samples"):
        run.generate("the ", temprature=0.0)
    with pytest.raises(UserError, match="trained with another vocabulary"):
        best_variables(config, tmp_path / "w", run.session.init, "another tokenizer's digest")


@pytest.mark.slow
def test_windows_side_by_side_cover_the_same_tokens_at_every_length(tmp_path):
    config = tiny("text", model__positions="alibi", data__factors=(1.0, 1.5))
    session = Session(config, tmp_path / "data", OPENERS)
    model, variables = session.model, jax.jit(session.init)(jax.random.key(0))
    found = session.measure(variables, config)
    text = np.load(tmp_path / "data" / "validation.npy").astype(np.int32)[:241]  # five stretches of 48 in 256 tokens
    for context in (16, 24):
        windows = text[np.arange(0, 240, context)[:, None] + np.arange(context + 1)]
        losses = -jax.nn.log_softmax(compiled(model)(variables, windows[:, :-1]))
        chosen = np.take_along_axis(np.asarray(losses), windows[:, 1:, None], -1)
        assert found["perplexity"][str(context)] == pytest.approx(float(np.exp(chosen.mean())), rel=1e-4)


def test_what_was_trained_with_one_encoding_is_measured_with_another():
    config = tiny(model__positions="rotary", evaluate__positions="rotary:scaling=interpolation,factor=2")
    session = Session(config, None, OPENERS)
    model, evaluated, variables = session.model, session.evaluated_model, jax.jit(session.init)(jax.random.key(0))
    tokens, positions = jnp.arange(3, 13)[None], jnp.arange(10)[None]
    trained = compiled(model)(variables, tokens, positions)
    np.testing.assert_allclose(compiled(evaluated)(variables, tokens, 2 * positions), trained, rtol=1e-4, atol=1e-5)
    assert not np.allclose(compiled(evaluated)(variables, tokens, positions), trained, atol=1e-3)


def test_a_biass_portrait_falls_with_the_distance_as_it_does():
    config = tiny(model__positions="alibi")
    encoding = build(config, 20, 24).new_encoding()
    found = portrait(encoding.record, encoding.sizes, {})
    assert found["bias"].shape == (2, 64, 64)
    assert (np.diff(found["similarity"]) < 0).all()
    assert found["similarity"][0] == 1
    config = tiny(model__positions="t5", precision__param_dtype="bfloat16")
    model = build(config, 20, 24)
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 3), jnp.int32))["params"]["encoding"]
    params = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    kept = portrait(model.new_encoding().record, encoding.sizes, params)
    assert {array.dtype for array in kept.values()} == {np.dtype("float32")}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"model__positions": "learned", "model__max_length": 10},
            "config.model.positions='learned': has positions for 10 tokens.*config.model.max_length.*data.factors",
        ),
        ({"evaluate__positions": "learned"}, "config.evaluate.positions='learned': has other parameters than"),
        (
            {"evaluate__positions": "randomized_sinusoidal:longest=20"},
            "config.evaluate.positions='randomized_sinusoidal:longest=20': has positions for 20 tokens, not for 25",
        ),
        ({"evaluate__positions": "spiral"}, "config.evaluate.positions='spiral': choose one of"),
        ({"model__positions": "spiral"}, "config.model.positions='spiral': choose one of"),
        ({"model__heads": 5}, "config.model.heads=5: must divide width=8"),
        ({"precision__dtype": "float33"}, "config.precision.dtype='float33': choose one of float32, bfloat16"),
        ({"model__positions": "sinusoidal", "model__width": 9, "model__heads": 3, "model__kv_heads": 3}, "even width"),
        (
            {"data__task": "last_occurrence", "data__shortest": 1},
            "config.data.shortest=1: task='last_occurrence' needs",
        ),
        ({"data__shortest": 7}, "config.data.shortest=7: is more than config.data.length=6"),
        ({"data__source": "video"}, "config.data.source='video': choose one of algorithmic, text"),
        ({"data__factors": (0.0,)}, "config.data.factors"),
        ({"data__factors": (0.5,)}, "one that is 1 or more"),
        ({"data__examples": 0}, "config.data.examples=0: needs 1 or more"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(overrides, message):
    with pytest.raises(UserError, match=message):
        experiments.load("positional_encoding").check(tiny(**overrides))


def test_a_text_shorter_than_a_context_is_refused_by_name(tmp_path):
    path = tmp_path / "short.txt"
    path.write_text("too short " * 10)
    with pytest.raises(UserError, match=r"short.txt'?: its held_out part has 10 tokens, and windows of .* need 34"):
        launch("train", tiny("text", data__path=str(path)), tmp_path / "w")
    with pytest.raises(UserError, match=r"no_such.txt"):
        launch("train", tiny("text", data__path=str(tmp_path / "no_such.txt")), tmp_path / "v")
