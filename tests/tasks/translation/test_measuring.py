"""What is measured of translations."""

from types import SimpleNamespace

import numpy as np
import pytest

from attention_jax.data.corpus import Reference, Split
from attention_jax.errors import UserError
from attention_jax.tasks.translation import measuring


def test_an_alignment_is_scored_without_the_end_and_only_where_every_word_has_its_truth():
    def score(truth):
        references = [Reference("a b", ["x y"], truth)]
        return measuring._alignment(
            [np.array([[0.2, 0.0, 0.0], [0.0, 0.1, 0.0], [0, 0, 1]])], Split(*"??", {}, references)
        )

    assert score([[0], [1]])["alignment_error_rate"] == 0
    assert score([[1], [0]])["alignment_error_rate"] == 1
    assert "alignment_error_rate" not in score([[0], [1], [1]])
    assert score(None).keys() == {"monotonicity", "coverage", "entropy"}


def test_a_held_out_sentence_that_a_model_has_no_room_for_is_told_before_training():
    tokenizer = SimpleNamespace(encode=lambda text: [5] * len(text.split()))
    corpus = SimpleNamespace(
        source=tokenizer, splits={"test": SimpleNamespace(references=[Reference("a b c d", [], None)])}
    )
    data = SimpleNamespace(buckets=(3,))
    measuring.require_room_of_held_out(SimpleNamespace(room=None), data, corpus)
    measuring.require_room_of_held_out(SimpleNamespace(room=5), data, corpus)  # four words and an end
    with pytest.raises(UserError, match="the model has room for 4 tokens, and texts are padded to 6"):
        measuring.require_room_of_held_out(SimpleNamespace(room=4), data, corpus)
