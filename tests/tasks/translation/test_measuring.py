"""What is measured of translations."""

import numpy as np

from attention_jax.data.corpus import Reference, Split
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
