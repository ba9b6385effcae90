"""What a session makes outlives whoever asked first."""

import jax
import pytest

from attention_jax.errors import UserError
from attention_jax.tasks.language_model.session import Session
from attention_jax.tasks.language_model.training import task_of
from configs.positional_encoding import get_config
from experiments.positional_encoding import OPENERS


def test_what_a_session_makes_is_no_part_of_a_trace_that_first_asks_for_it(tmp_path):
    session = Session(get_config("text"), tmp_path / "data", OPENERS)
    jax.eval_shape(session.init, jax.random.key(0))
    table = session.source.batches(0, 0, 1).table
    assert not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(table))


@pytest.mark.parametrize("tokenizer", ["bpe", "unigram"])
def test_a_text_of_pieces_needs_no_other_value_than_its_tokenizer(tokenizer, tmp_path):
    config = get_config("text")
    config.data.tokenizer = tokenizer
    session = Session(config, tmp_path / "data", OPENERS)
    session.check()
    assert 256 < session.source.vocabulary <= config.data.vocabulary


@pytest.mark.parametrize("best_by", ["area.token_accuracy", "validation.loss", "ema.train.loss"])
def test_what_is_not_measured_in_training_chooses_no_checkpoint(best_by):
    config = get_config("smoke")
    assert task_of(Session(config, None, OPENERS))
    config.train.best_by = best_by
    said = f"config.train.best_by='{best_by}': is not measured in training. Choose one of train.loss."
    with pytest.raises(UserError, match=said):
        task_of(Session(config, None, OPENERS))
