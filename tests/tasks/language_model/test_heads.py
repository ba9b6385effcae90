"""What a run keeps of its heads: the statistics of held-out rows, and what is refused before any work."""

import math

import jax
import numpy as np
import pytest
from support import compiled
from texts import DOCUMENTS, write_jsonl

from attention_jax.errors import UserError
from attention_jax.tasks.language_model import heads
from attention_jax.tasks.language_model.session import Session
from attention_jax.tasks.language_model.stream import OPENERS
from configs.language_model import get_config

SMALL = {
    "model.layers": 2, "model.width": 8, "model.heads": 2, "model.kv_heads": 2, "model.feed_forward": 8,
    "data.length": 16, "data.batch": 3, "statistics.rows": 3,
}  # fmt: skip


def opened(tmp_path, variant="cpu,characters", **overrides):
    config = get_config(variant)
    config.data.path = write_jsonl(tmp_path / "all.jsonl", DOCUMENTS)
    values = {"data.source": "jsonl", "data.vocabulary": 300, "data.held_out": 0.3}
    config.update_from_flattened_dict(SMALL | values | {k.replace("__", "."): v for k, v in overrides.items()})
    return Session(config.lock(), tmp_path / "data", OPENERS)


def kept(session, tmp_path):
    variables = jax.jit(session.init)(jax.random.key(0))
    heads.write_statistics(session, session.config, variables, tmp_path)
    return variables, heads.read_statistics(tmp_path)


@pytest.mark.parametrize("packing", ["windows", "documents"])
def test_what_is_kept_is_what_the_weights_of_the_first_held_out_rows_say(tmp_path, packing):
    session = opened(tmp_path, data__packing=packing, statistics__length=160)
    variables, found = kept(session, tmp_path)
    rows = session.source.held_out(3, 160)
    of_rows = variables, rows.tokens, rows.positions, rows.segments
    weights = compiled(session.model, "attention")(*of_rows)["decoder"].weights
    assert found["entropy"].shape == (3, 2, 2, 160)
    largest = np.max(weights, axis=-1)
    np.testing.assert_allclose(found["top_weights"][..., 0], largest, rtol=1e-5)
    eighths = np.asarray(weights).reshape(*weights.shape[:-1], 8, 20).sum(axis=-1)
    np.testing.assert_allclose(found["parts"], eighths, atol=1e-6)
    if packing == "documents":
        np.testing.assert_array_equal(found["positions"], rows.positions)
        begins = (found["positions"] == 0) & found["is_token"]
        np.testing.assert_allclose(np.moveaxis(found["first"], -1, 1)[begins], 1, rtol=1e-5)
        assert begins.sum() > 3  # some rows have several documents


def test_a_text_that_is_shorter_than_a_row_is_not_filled_up(tmp_path):
    session = opened(tmp_path, statistics__length=4096)
    _, found = kept(session, tmp_path)
    tokens = len(session.source.text.splits["validation"].tokens)
    assert tokens < 4096
    assert found["is_token"].sum() == tokens
    assert len(found["entropy"]) == 1
    assert found["entropy"][..., :tokens].max() <= math.log(tokens)


@pytest.mark.parametrize("overrides", [{"statistics__rows": 0}, {"model__mixer": "gru", "model__positions": "none"}])
def test_nothing_is_kept_where_nothing_is_asked_or_nothing_attends(tmp_path, overrides):
    assert kept(opened(tmp_path, **overrides), tmp_path)[1] == {}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"statistics__rows": -1}, "config.statistics.rows=-1: needs 0 or more"),
        ({"statistics__top": -1}, "config.statistics.top=-1: needs 0 or more"),
        (
            {"model__positions": "learned", "model__max_length": 16, "statistics__length": 17},
            "config.statistics.length=17: positions='learned': has positions for 16 tokens, not for 17. Lower it",
        ),
    ],
)
def test_what_cannot_be_had_is_refused_by_its_key(tmp_path, overrides, message):
    with pytest.raises(UserError, match=message):
        heads.require_usable(opened(tmp_path, **overrides))
