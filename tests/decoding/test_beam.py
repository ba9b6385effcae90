"""Beam search over a random toy model and over every translator: exhaustive optimum, greedy, independence."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from translators import LENGTHS, NAMES, ONE_LAYER, SOURCE, trained

from attention_jax.decoding.beam import NEVER, beam_search
from attention_jax.decoding.greedy import greedy
from attention_jax.decoding.sampling import sample
from attention_jax.ops.cache import Cache

PAD, BOS, EOS = 0, 1, 2
WORDS, LONGEST = 5, 4
TABLE = jax.random.normal(jax.random.key(3), (6, WORDS, WORDS)) * 2  # row, last word, next word
ENDS = {"bos": BOS, "eos": EOS, "pad": PAD}


def toy(tokens, cache):
    """The next word depends on the row (memory), on the last word, and on how many were read (state and cursor)."""
    logits = TABLE[cache.memory, tokens] * (1 + 0.3 * cache.state[:, None])
    return logits, Cache(cache.memory, cache.state + 1, cache.cursor + 1)


def start(rows):
    rows = jnp.array(rows)
    return Cache(rows, jnp.zeros(len(rows)), jnp.zeros(len(rows), jnp.int32))


def search(rows, beams, length_penalty=0.0):
    empty = jnp.zeros(len(rows), bool)
    run = functools.partial(beam_search, toy, beams=beams, length_penalty=length_penalty, **ENDS)
    return jax.jit(run, static_argnums=2)(start(rows), empty, LONGEST)


def tree(longest):
    """Every sentence that can be written: words, then the end unless there is no room for it."""
    for length in range(1, longest + 1):
        for words in itertools.product(range(EOS, WORDS), repeat=length):
            if EOS not in words[:-1] and (words[-1] == EOS or length == longest):
                yield words


def log_prob(logits, words):
    """log p of the words, given the logits of each, in float64."""
    logits = np.asarray(logits, np.float64)
    return sum(row[word] - np.log(np.exp(row).sum()) for row, word in zip(logits, words, strict=True))


def every_hypothesis(row, length_penalty):
    """All sentences of the tree, scored one by one."""
    found = []
    for words in tree(LONGEST):
        before = enumerate((BOS, *words[:-1]))
        logits = [np.asarray(TABLE[row, last], np.float64) * (1 + 0.3 * position) for position, last in before]
        found.append((log_prob(logits, words) / ((5 + len(words)) / 6) ** length_penalty, words))
    return sorted(found, reverse=True)


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 2.0])
def test_a_beam_as_wide_as_the_tree_finds_the_best_sentences_in_order(length_penalty):
    found = search(range(6), len(list(tree(LONGEST))), length_penalty)
    for row in range(6):
        for rank, (score, words) in enumerate(every_hypothesis(row, length_penalty)[:10]):
            np.testing.assert_allclose(found.scores[row, rank], score, rtol=1e-4)
            expected = [*words, *[PAD] * (LONGEST - len(words))]
            np.testing.assert_array_equal(found.tokens[row, rank], expected)


def searched_by_hand(row, beams, length_penalty):
    """The same search over lists in float64: what goes on fills the beam, whatever has ended."""
    live, done = [(0.0, ())], []
    for position in range(LONGEST):
        longer = []
        for score, words in live:
            last = words[-1] if words else BOS
            logits = np.asarray(TABLE[row, last], np.float64) * (1 + 0.3 * position)
            longer += [(score + log_prob([logits], [word]), (*words, word)) for word in range(EOS, WORDS)]
        longer.sort(reverse=True)
        done += [(score, words) for score, words in longer[:beams] if words[-1] == EOS]
        live = [(score, words) for score, words in longer if words[-1] != EOS][:beams]
        if len(done) >= beams:
            live = []
    every = [(score / ((5 + len(words)) / 6) ** length_penalty, words) for score, words in done + live]
    return sorted(every, reverse=True)[:beams]


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 2.0])
@pytest.mark.parametrize("beams", [2, 3, 5])
def test_a_beam_finds_what_a_search_over_lists_does(beams, length_penalty):
    found = search(range(6), beams, length_penalty)
    for row in range(6):
        expected = searched_by_hand(row, beams, length_penalty)
        np.testing.assert_allclose(found.scores[row], [score for score, _ in expected], rtol=1e-4)
        assert [tuple(w for w in words if w != PAD) for words in found.tokens[row].tolist()] == [w for _, w in expected]


def test_a_hypothesis_that_ends_leaves_its_place_to_one_that_goes_on():
    a, b = 3, 4
    probabilities = jnp.full((WORDS, WORDS), 1e-3)
    probabilities = probabilities.at[BOS, jnp.array([EOS, a])].set(jnp.array([0.30, 0.68]))
    probabilities = probabilities.at[a, jnp.array([a, b])].set(jnp.array([0.50, 0.48])).at[b, EOS].set(0.99)
    found = beam_search(
        lambda tokens, cache: (jnp.log(probabilities[tokens]), cache),
        start([0]), jnp.zeros(1, bool), LONGEST, beams=2, length_penalty=1.0, **ENDS,
    )  # fmt: skip
    assert found.tokens[0, 0].tolist() == [a, b, EOS, PAD]


def test_the_search_is_over_when_every_sentence_has_as_many_ends_as_beams():
    steps = []

    def ending(tokens, cache):
        jax.debug.callback(lambda: steps.append(1))
        return jnp.zeros((*tokens.shape, WORDS)).at[..., EOS].set(5.0), cache

    beam_search(ending, start([0]), jnp.zeros(1, bool), 50, beams=2, length_penalty=0.0, **ENDS)
    jax.effects_barrier()
    assert 2 <= len(steps) < 10


@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 2.0])
def test_a_beam_of_one_is_greedy(length_penalty):
    expected = greedy(toy, start(range(6)), jnp.zeros(6, bool), LONGEST, **ENDS)
    np.testing.assert_array_equal(search(range(6), 1, length_penalty).tokens[:, 0], expected)


def test_a_sentence_does_not_depend_on_its_batch():
    together, alone = search(range(6), 3, 0.6), search([4], 3, 0.6)
    np.testing.assert_array_equal(together.tokens[4], alone.tokens[0])
    np.testing.assert_allclose(together.scores[4], alone.scores[0], rtol=1e-6)


def test_more_beams_than_sentences_find_each_once_and_mark_the_rest():
    found = search([0], 500)
    probable = int((found.scores[0] > -1e6).sum())
    assert probable == len(every_hypothesis(0, 0.0))
    assert len({tuple(words) for words in found.tokens[0, :probable].tolist()}) == probable
    assert (found.scores[0, -100:] == NEVER).all()


# In a step of the others everything is done that is done in one of these.
EARLY = ("bahdanau", "luong_local_p", "transformer_small")


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] if n not in EARLY else []) for n in NAMES])
def test_every_translator_decodes_alike_greedily_in_a_beam_of_one_and_whatever_its_batch(name):
    module, variables = trained(name, **ONE_LAYER)
    step = functools.partial(module.apply, variables, method="step")

    def cache_of(source, lengths):
        memory = module.apply(variables, source, lengths, method="encode")
        return module.apply(variables, memory, 6, method="init_cache")

    @jax.jit
    def everything(source, lengths):
        cache, is_empty = cache_of(source, lengths), lengths == 0
        beam = functools.partial(beam_search, step, cache, is_empty, 6, length_penalty=0.6, **ENDS)
        return greedy(step, cache, is_empty, 6, **ENDS), beam(beams=1), beam(beams=3)

    one_by_one, narrow, wide = everything(SOURCE, LENGTHS)
    np.testing.assert_array_equal(narrow.tokens[:, 0], one_by_one)
    assert (wide.scores[:, :-1] >= wide.scores[:, 1:]).all()
    assert np.isfinite(wide.scores).all()  # no step goes past the cache's room, of sentences that have ended neither
    other = everything(jnp.stack([SOURCE[1], jnp.zeros(5, int), SOURCE[0]]), jnp.array([3, 0, 5]))
    for row, here in ((1, 0), (0, 2)):
        np.testing.assert_array_equal(other[0][here], one_by_one[row])
        np.testing.assert_array_equal(other[2].tokens[here], wide.tokens[row])
        np.testing.assert_allclose(other[2].scores[here], wide.scores[row], rtol=1e-3)


@pytest.mark.parametrize("name", EARLY)
def test_a_beam_as_wide_as_the_tree_finds_the_best_sentences_of_a_translator(name):
    module, variables = trained(name, source=WORDS, target=WORDS, **ONE_LAYER)
    source, lengths, sentences = jnp.array([[3, 4, 4, EOS]]), jnp.array([4]), list(tree(3))

    @jax.jit
    def widest(source):
        memory = module.apply(variables, source, lengths, method="encode")
        cache, is_empty = module.apply(variables, memory, 3, method="init_cache"), jnp.zeros(1, bool)
        step = functools.partial(module.apply, variables, method="step")
        return beam_search(step, cache, is_empty, 3, beams=len(sentences), length_penalty=0.6, **ENDS)

    inputs = jnp.array([[BOS, *words[:-1], *[PAD] * (3 - len(words))] for words in sentences])
    repeated = [jnp.repeat(array, len(sentences), 0) for array in (source, lengths)]
    logits = jax.jit(module.apply)(variables, *repeated, inputs)  # teacher forced
    scores = [
        log_prob(rows[: len(words)], words) / ((5 + len(words)) / 6) ** 0.6
        for rows, words in zip(np.asarray(logits), sentences, strict=True)
    ]
    found, best = widest(source), np.argsort(-np.array(scores))
    np.testing.assert_allclose(found.scores[0], np.array(scores)[best], rtol=1e-3)
    assert [[w for w in words if w != PAD] for words in found.tokens[0].tolist()] == [[*sentences[i]] for i in best]


def draw(rows, seed=0, **kwargs):
    keys = jax.vmap(lambda row: jax.random.fold_in(jax.random.key(seed), row))(jnp.array(rows))
    return sample(toy, start(rows), jnp.zeros(len(rows), bool), LONGEST, keys, **ENDS, **kwargs)


def test_samples_of_the_likeliest_word_alone_are_greedy():
    expected = greedy(toy, start(range(6)), jnp.zeros(6, bool), LONGEST, **ENDS)
    np.testing.assert_array_equal(draw(range(6), top_k=1), expected)
    np.testing.assert_array_equal(draw(range(6), top_p=0.0), expected)
    np.testing.assert_array_equal(draw(range(6), temperature=1e-4), expected)


@pytest.mark.parametrize("temperature", [0, -1.0])
def test_a_temperature_that_divides_by_nothing_is_refused(temperature):
    with pytest.raises(ValueError, match=f"temperature={temperature}: needs more than 0; greedy decoding"):
        draw([0], temperature=temperature)


def test_what_is_drawn_for_a_sentence_depends_on_its_key_alone():
    np.testing.assert_array_equal(draw(range(6))[4], draw([4])[0])
    assert (draw(range(6)) != draw(range(6), seed=1)).any()


def test_samples_have_the_models_frequencies():
    rows = jnp.zeros(20000, jnp.int32)
    keys = jax.random.split(jax.random.key(0), len(rows))
    first = np.asarray(sample(toy, start(rows), jnp.zeros(len(rows), bool), 1, keys, **ENDS, top_p=0.9)[:, 0])
    probabilities = np.asarray(jax.nn.softmax(TABLE[0, BOS].at[:EOS].set(-jnp.inf)), np.float64)
    order = np.argsort(-probabilities)
    kept = order[: np.searchsorted(np.cumsum(probabilities[order]), 0.9) + 1]
    expected = np.zeros(WORDS)
    expected[kept] = probabilities[kept] / probabilities[kept].sum()
    np.testing.assert_allclose(np.bincount(first, minlength=WORDS) / len(first), expected, atol=0.02)


def test_a_decoder_that_scores_words_by_where_they_stand_is_not_searched_with_several_beams():
    module, variables = trained("transformer_book", **{"score": "location:longest=8"})

    @jax.jit
    def empty_cache():
        memory = module.apply(variables, SOURCE, LENGTHS, method="encode")
        return module.apply(variables, memory, 4, method="init_cache")

    cache = empty_cache()
    step = functools.partial(module.apply, variables, method="step")
    with pytest.raises(ValueError, match="score='location:longest=8': .* 2 hypotheses .* one beam"):
        beam_search(step, cache, jnp.zeros(3, bool), 4, beams=2, length_penalty=0.0, **ENDS)
    assert greedy(step, cache, jnp.zeros(3, bool), 4, **ENDS).shape == (3, 4)
