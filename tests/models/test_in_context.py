"""The Transformer that reads vectors: what it sees, what it is made of, and what it refuses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from support import drawn

from attention_jax.models.in_context import InContextRegressor
from attention_jax.modules.transformer import LayerSpec
from configs import kernel_regression

FIELDS = kernel_regression.get_config("in_context_smoke").model.to_dict() | {"backend": "reference", "max_length": 9}
VECTORS = jax.random.normal(jax.random.key(0), (2, 9, 4))


def build(**changed):
    return InContextRegressor.of(outputs=3, **(FIELDS | changed))


@pytest.fixture(scope="module")
def made():
    model = build(layers=2)
    return model, drawn(model.init, VECTORS)


def test_an_answer_is_of_its_vector_and_those_before_it(made):
    model, variables = made
    answers, gradient = jax.jit(
        lambda x: (model.apply(variables, x), jax.grad(lambda x: model.apply(variables, x)[:, 4].sum())(x))
    )(VECTORS)
    assert answers.shape == (2, 9, 3)
    assert np.all(np.any(gradient[:, :5] != 0, axis=-1))
    np.testing.assert_array_equal(gradient[:, 5:], 0)


def test_stacked_layers_answer_as_layers_apart(made):
    model, _ = made
    stacked = build(layers=2, stacked=True)
    key = jax.random.key(3)
    answers = [jax.jit(one.apply)(jax.jit(one.init)(key, VECTORS), VECTORS) for one in (model, stacked)]
    np.testing.assert_allclose(*answers, rtol=1e-4, atol=1e-5)


def test_it_has_a_language_models_layers_between_two_linear_maps(made):
    _, variables = made
    assert set(variables["params"]) == {"read_in", "encoding", "layer_0", "layer_1", "last_norm", "read_out"}
    assert variables["params"]["read_in"]["kernel"].shape == (4, FIELDS["width"])
    assert variables["params"]["read_out"]["kernel"].shape == (FIELDS["width"], 3)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"layers": 0}, r"^layers=0: needs 1 or more"),
        ({"heads": 3}, r"^heads=3: must divide width="),
        ({"positions": "compass"}, r"^positions='compass': choose one of"),
        ({"positions": "randomized_sinusoidal"}, r"^positions='randomized_sinusoidal': only a language model draws"),
        (
            {"mixer": "gru", "positions": "none", "score": "dot"},
            r"^score='dot': .*mixer='gru' has no attention to read it",
        ),
        ({"cross_score": "dot"}, r"^cross_score='dot': .*there is no attention to a source"),
    ],
)
def test_fields_that_do_not_fit_are_refused(changed, message):
    with pytest.raises(ValueError, match=message):
        build(**changed)


def test_more_vectors_than_positions_are_refused():
    with pytest.raises(ValueError, match=r"^positions='learned': .*8"):
        jax.eval_shape(build(max_length=8).init, jax.random.key(0), VECTORS)


def test_every_field_of_a_layer_may_be_given():
    fields = LayerSpec._field_defaults | {"dtype": jnp.float32, "param_dtype": jnp.float32, "backend": "chunked"}
    assert build(**fields).backend == "chunked"
