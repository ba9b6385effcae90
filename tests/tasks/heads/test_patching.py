"""What heads carry of the change of one word: outputs of one run put into another's."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from support import compiled
from translators import ONE_LAYER, trained

from attention_jax.data.sources import Pair
from attention_jax.data.tokenizers import split_words
from attention_jax.errors import UserError
from attention_jax.modules.attention import Edit
from attention_jax.tasks.heads.patching import Carried, Couples, carried, couples_of, recovered, recovered_intervals

SIZES = {"encoder": (1, 4), "decoder": (1, 4), "cross": (1, 4)}
LENGTHS = jnp.array([5, 3])
COUPLES = Couples(
    clean=np.array([[4, 5, 6, 7, 2], [8, 9, 2, 0, 0]]),
    changed=np.array([[4, 10, 6, 7, 2], [8, 4, 2, 0, 0]]),
    inputs=np.array([[1, 4, 5, 6], [1, 7, 8, 0]]),
    position=np.array([2, 1]),
    word=np.array([6, 8]),
    changed_word=np.array([9, 11]),
)


@functools.cache
def measured():
    module, variables = trained("transformer_book", **ONE_LAYER)
    return carried(module, SIZES)(variables, COUPLES)


def test_all_heads_that_read_the_source_together_carry_the_whole_change():
    found = measured()
    together = dict(zip(SIZES, found.patched[12:], strict=True))
    np.testing.assert_allclose(together["cross"], found.whole, rtol=1e-4)
    assert (np.abs(together["encoder"] - found.whole) > 1e-3).any()  # embeddings go around them


def test_a_head_before_the_source_is_read_carries_nothing():
    np.testing.assert_allclose(measured().patched[4:8], 0, atol=1e-5)  # the decoder's first layer: the words so far


@pytest.mark.parametrize(("kind", "row"), [("encoder", 2), ("decoder", 4), ("cross", 9)])
def test_a_patched_head_is_the_models_with_that_output_replaced(kind, row):
    module, variables = trained("transformer_book", **ONE_LAYER)
    shown = compiled(module, "attention")(variables, COUPLES.changed, LENGTHS, COUPLES.inputs)

    def differences(chosen):
        edits = {}
        for n, name in enumerate(SIZES):
            replaced = np.arange(4 * n, 4 * n + 4)[None] == chosen
            edits[name] = Edit(replaced=jnp.asarray(replaced), outputs=jnp.moveaxis(shown[name].outputs, 1, 0))
        logits = np.asarray(compiled(module)(variables, COUPLES.clean, LENGTHS, COUPLES.inputs, edits=edits))
        read = [logits[index, at] for index, at in enumerate(COUPLES.position)]
        return [one[b] - one[a] for one, a, b in zip(read, COUPLES.word, COUPLES.changed_word, strict=True)]

    expected = np.subtract(differences(row), differences(-1))
    np.testing.assert_allclose(measured().patched[row], expected, atol=2e-5)


class Words:
    """A vocabulary of the words that it is asked for; all others are one."""

    def __init__(self, *known):
        self.known = known

    def encode(self, text):
        return [3 + (self.known.index(word) + 1 if word in self.known else 0) for word in split_words(text)]


def test_couples_are_compared_at_the_first_word_that_differs():
    both = Pair("i see it .", "je le vois .", ""), Pair("i draw it .", "je le dessine .", "")
    source, target = Words("i", "see", "draw", "it", "."), Words("je", "le", "vois", "dessine", ".")
    found = couples_of([both], source, target)
    assert found.position.tolist() == [2]
    assert (found.word.tolist(), found.changed_word.tolist()) == ([6], [7])
    assert found.inputs[0, :3].tolist() == [1, 4, 5]
    with pytest.raises(UserError, match="tells no sentences of the grammar apart"):
        couples_of([both], Words("i", "it"), target)


def test_what_is_recovered_is_a_ratio_of_sums_and_keeps_its_heads_when_they_are_put_in_order():
    found = Carried(np.array([4.0, -1.0]), np.array([[2.0, 1.0], [4.0, -1.0], [0.0, 0.0]]), np.array([True, False]))
    np.testing.assert_allclose(recovered(found), [1, 1, 0])
    np.testing.assert_allclose(found.of_heads([1, 0]).patched, found.patched[[1, 0, 2]])


def test_intervals_are_over_couples_too_where_there_is_one_seed(random):
    whole = random.uniform(1, 2, 50)
    (head,) = recovered_intervals([Carried(whole, (whole * random.uniform(0, 1, 50))[None], whole > 0)])
    assert 0.3 < head[1] < head[0] < head[2] < 0.7
