"""What a session makes outlives whoever asked first."""

import jax
import pytest

from attention_jax.tasks.language_model.session import Session
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
