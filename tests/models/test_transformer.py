"""The Transformer: its parameter count in closed form, grouped heads, shared embeddings, batch norm."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import compiled, drawn

from attention_jax.models.transformer import Transformer
from attention_jax.ops.dropout import Dropout
from configs.nmt import MODELS

SOURCE = jnp.array([[4, 5, 6, 7, 2], [8, 9, 2, 0, 0]])
LENGTHS = jnp.array([5, 3])
INPUTS = jnp.array([[1, 4, 5, 6], [1, 7, 8, 0]])
TINY = MODELS["transformer_book"]["kwargs"] | {"width": 8, "feed_forward": 16, "shared": "target"}


def make(**more):
    module = Transformer.of(source_vocabulary=11, target_vocabulary=13, **TINY | more)
    return module, drawn(module.init, SOURCE, LENGTHS, INPUTS)


def closed_form(kwargs, vocabulary):
    """Projections without biases, feed-forward layers with them, two numbers a feature of every norm."""
    d, f = kwargs["width"], kwargs["feed_forward"]
    attention, feed, norm = 4 * d * d, 2 * d * f + d + f, 2 * d
    encoder = kwargs["encoder_layers"] * (attention + feed + 2 * norm)
    decoder = kwargs["decoder_layers"] * (2 * attention + feed + 3 * norm)
    ends = 2 * norm if kwargs["norm_first"] else 0
    embeddings = {"all": 1, "target": 2, "none": 3}[kwargs["shared"]] * vocabulary * d
    return encoder + decoder + ends + embeddings + (vocabulary if kwargs["shared"] == "none" else 0)


@pytest.mark.parametrize("name", [name for name in MODELS if name.startswith("transformer")])
def test_parameters_are_those_of_the_closed_form(name):
    kwargs = MODELS[name]["kwargs"]
    module = Transformer.of(source_vocabulary=37000, target_vocabulary=37000, **kwargs)
    shapes = jax.eval_shape(module.init, jax.random.key(0), SOURCE, LENGTHS, INPUTS)
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == closed_form(kwargs, 37000)


@pytest.mark.parametrize(("name", "published"), [("transformer_base", 65e6), ("transformer_big", 213e6)])
def test_the_papers_models_have_the_papers_size(name, published):
    assert abs(closed_form(MODELS[name]["kwargs"], 37000) / published - 1) < 0.04


def test_grouped_heads_are_full_heads_that_share_keys_and_values():
    grouped, variables = make(kv_heads=2)
    full = Transformer.of(source_vocabulary=11, target_vocabulary=13, **TINY)

    def spread(path, leaf):
        if path[-1].key not in ("key", "value"):
            return leaf
        return jnp.repeat(leaf.reshape(8, 2, 2), 2, axis=1).reshape(8, 8)

    spread_out = jax.tree_util.tree_map_with_path(spread, variables)
    np.testing.assert_allclose(
        compiled(grouped)(variables, SOURCE, LENGTHS, INPUTS),
        compiled(full)(spread_out, SOURCE, LENGTHS, INPUTS),
        rtol=1e-4,
        atol=1e-5,
    )


def test_without_positions_the_encoder_does_not_see_the_order_of_words():
    module, variables = make(encoder_positions="none")
    swapped = SOURCE.at[0].set(SOURCE[0, jnp.array([3, 1, 0, 4, 2])])
    logits = [compiled(module)(variables, source, LENGTHS, INPUTS) for source in (SOURCE, swapped)]
    np.testing.assert_allclose(*logits, rtol=1e-4, atol=1e-5)


def test_shared_embeddings_are_one_matrix():
    module = Transformer.of(source_vocabulary=13, target_vocabulary=13, **TINY | {"shared": "all"})
    variables = jax.eval_shape(module.init, jax.random.key(0), SOURCE, LENGTHS, INPUTS)
    matrices = [leaf for leaf in jax.tree.leaves(variables) if 13 in leaf.shape]
    assert [leaf.shape for leaf in matrices] == [(13, 8)]


def test_batch_norm_learns_its_moments_in_training_and_uses_them_afterwards():
    module, variables = make(norm="batch")
    train = jax.jit(functools.partial(module.apply, mutable=["batch_stats"]))
    _, changed = train(variables, SOURCE, LENGTHS, INPUTS, Dropout(jax.random.key(1), 0.1))
    before, after = variables["batch_stats"], changed["batch_stats"]
    moved = jax.tree.map(lambda a, b: bool((a != b).any()), before, after)
    assert all(jax.tree.leaves(moved))
    a, b = (compiled(module)(given, SOURCE, LENGTHS, INPUTS) for given in (variables, {**variables, **changed}))
    assert not np.allclose(a, b)


def test_rows_without_a_sentence_leave_no_trace_in_the_moments():
    module, variables = make(norm="batch")
    train = jax.jit(functools.partial(module.apply, mutable=["batch_stats"]))

    def moments(rows):
        padded = [jnp.pad(array, ((0, rows), *((0, 0),) * (array.ndim - 1))) for array in (SOURCE, LENGTHS, INPUTS)]
        padded[2] = padded[2].at[:, 0].set(1)  # what a decoder reads first
        return train(variables, *padded, Dropout(jax.random.key(1), 0.0))[1]

    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), moments(0), moments(5))


WITHOUT = {"mixer": "gru", "encoder_mixer": "gru", "encoder_positions": "none", "decoder_positions": "none"}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"heads": 3}, "heads=3: must divide width=8"),
        ({"kv_heads": 3}, "kv_heads=3: must divide heads=4"),
        ({"width": 9, "heads": 3, "kv_heads": 3}, "encoder_positions='sinusoidal': needs an even width, not 9"),
        ({"shared": "all"}, "shared='all': needs one vocabulary, and there are two, of 11 and 13 entries"),
        ({"mixer": "window"}, "mixer='window': an encoder's alone; a decoder has no window. See encoder_mixer"),
        ({"encoder_mixer": "delta"}, "encoder_mixer='delta': reads in one direction alone, and an encoder in both"),
        (
            {"encoder_mixer": "gru", "encoder_positions": "alibi"},
            "encoder_positions='alibi': acts on scores or what makes them, which encoder_mixer='gru'",
        ),
        ({"decoder_positions": "spiral"}, "decoder_positions='spiral': choose one of none"),
        (
            WITHOUT | {"score": "gaussian", "cross_score": "cosine"},
            "score='gaussian': nothing but attention to the source would read it. Set score='scaled_dot'",
        ),
        (
            WITHOUT | {"normalize": "entmax15", "cross_normalize": "softmax"},
            "normalize='entmax15': nothing but attention to the source would read it. Set normalize='softmax'",
        ),
        ({"cross_score": "cos"}, "cross_score='cos': choose one of dot, scaled_dot"),
        ({"cross_normalize": "max"}, "cross_normalize='max': choose one of softmax"),
        (
            {"decoder_positions": "randomized_alibi"},
            "decoder_positions=.randomized_alibi.: only a language model draws",
        ),
        ({"norm": "group"}, "norm='group': choose one of layer, rms, batch"),
        ({"encoder_layers": 0}, "encoder_layers=0: needs 1 or more"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(changed, message):
    with pytest.raises(ValueError, match=message):
        Transformer.of(source_vocabulary=11, target_vocabulary=13, **TINY | changed)
