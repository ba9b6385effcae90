"""What a translator's words rest on: gradients against those of its table, erasure against words left out by hand."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from translators import LENGTHS, trained

from attention_jax.tasks.explanation.importance import (
    IMPORTANCE,
    direct_gradients,
    erasure,
    gradients,
    replacing,
    weights_of,
)
from attention_jax.tasks.translation.model import shifted

SOURCE = jnp.array([[4, 5, 6, 7, 2], [8, 9, 2, 0, 0], [2, 0, 0, 0, 0]])
TARGET = jnp.array([[4, 5, 6, 2], [7, 8, 2, 0], [9, 2, 0, 0]])
BATCH = {"source": SOURCE, "target": TARGET}
KEYWORD = 7
OF_BOTH = (direct_gradients, gradients)
MODELS = [
    "luong_general",
    pytest.param("bahdanau", marks=pytest.mark.slow),
    pytest.param("transformer_book", marks=pytest.mark.slow),
]


def test_a_model_in_bfloat16_has_importance_too():
    module, variables = trained("luong_general")
    half = module.clone(dtype=jnp.bfloat16)
    found, exact = (jax.jit(gradients, static_argnums=0)(one, variables, BATCH) for one in (half, module))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0.2, atol=0.05), found, exact)


class OneWord(nn.Module):
    """Reads nothing but KEYWORD."""

    def setup(self):
        self.table = nn.Embed(11, 4)
        self.logits = nn.Dense(13)

    def encode(self, source, lengths, dropout=None, edits=None):
        return jnp.sum(self.table(source) * (source == KEYWORD)[..., None], axis=1)

    def attention(self, source, lengths, inputs):
        return {}

    def decode(self, memory, inputs, dropout=None, edits=None):
        logits = self.logits(memory)[:, None]
        return jnp.broadcast_to(logits, (*inputs.shape, logits.shape[-1]))

    def __call__(self, source, lengths, inputs, dropout=None, edits=None):
        return self.decode(self.encode(source, lengths), inputs)


@pytest.mark.parametrize("name", IMPORTANCE)
def test_a_model_that_reads_one_word_rests_on_that_word_alone(name):
    model = OneWord()
    variables = jax.jit(model.init)(jax.random.key(0), SOURCE, LENGTHS, TARGET)
    found = np.asarray(IMPORTANCE[name](model, variables, BATCH))
    assert (found[0, :, 3] != 0).all()
    np.testing.assert_allclose(np.delete(found, 3, axis=2), 0, atol=1e-6)
    np.testing.assert_allclose(found[1:], 0, atol=1e-6)


def log_p(model, variables, source, target):
    """log p of every word of one sentence without padding, one call each."""
    logits = model.apply(variables, source[None], jnp.array([len(source)]), shifted(target[None]))
    return jax.nn.log_softmax(logits)[0][jnp.arange(len(target)), target]


@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_the_rows_of_the_embeddings_table_times_the_rows(name):
    model, variables = trained(name)
    found = jax.jit(lambda batch: gradients(model, variables, batch))(BATCH)
    source, target = SOURCE[1, :3], TARGET[1, :3]

    def of_table(table):
        params = variables["params"] | {"source_embedding": {"embedding": table}}
        return log_p(model, variables | {"params": params}, source, target)

    table = variables["params"]["source_embedding"]["embedding"]
    jacobian_TxVxD = jax.jit(jax.jacrev(of_table))(table)
    expected = np.abs(np.einsum("tvd,vd->tv", jacobian_TxVxD, table)[:, source])
    np.testing.assert_allclose(found[1, :3, :3], expected, rtol=1e-3, atol=1e-5)
    assert not np.asarray(found[1, 3:]).any()
    assert not np.asarray(found[1, :, 3:]).any()


@pytest.mark.parametrize("name", MODELS)
def test_direct_gradients_are_those_with_attention_to_the_source_as_a_constant(name):
    model, variables = trained(name)
    found, through = (jax.jit(lambda batch, of=of: of(model, variables, batch))(BATCH) for of in OF_BOTH)
    source, target = SOURCE[0], TARGET[0]
    table = variables["params"]["source_embedding"]["embedding"]
    weights = weights_of(model, variables, {"source": source[None], "target": target[None]})

    def of_table(table):
        params = variables["params"] | {"source_embedding": {"embedding": table}}
        edits = replacing(weights["cross"])
        length = jnp.array([len(source)])
        logits = model.apply(variables | {"params": params}, source[None], length, shifted(target[None]), None, edits)
        return jax.nn.log_softmax(logits)[0][jnp.arange(len(target)), target]

    jacobian_TxVxD = jax.jit(jax.jacrev(of_table))(table)
    expected = np.abs(np.einsum("tvd,vd->tv", jacobian_TxVxD, table)[:, source])
    np.testing.assert_allclose(found[0], expected, rtol=1e-3, atol=1e-6)
    assert np.abs(np.asarray(found - through)).max() > 1e-3 * expected.max()


@pytest.mark.parametrize("name", MODELS)
def test_erasure_is_how_far_predictions_move_without_the_word(name):
    model, variables = trained(name)
    found = jax.jit(lambda batch: erasure(model, variables, batch))(BATCH)
    source, target = SOURCE[0], TARGET[0]

    @jax.jit
    def of_source(source):
        lengths = jnp.array([len(source)])
        return jax.nn.softmax(model.apply(variables, source[None], lengths, shifted(target[None])))[0]

    for erased in range(len(source)):
        apart = of_source(source) - of_source(jnp.delete(source, erased))
        expected = np.sum(np.maximum(apart, 0), axis=-1)
        np.testing.assert_allclose(found[0, :, erased], expected, rtol=1e-3, atol=1e-4)
