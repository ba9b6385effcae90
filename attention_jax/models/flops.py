"""The FLOPs that a model needs, whatever way they are computed: what MFU counts.

They are those of the matrix products of a forward and backward pass by the reference backend, without
rematerialization, less the products of causal self-attention whose weight is 0 (Chowdhery et al. 2022, app. B, which
does not subtract them; Dao 2024, §4.1, which does).
"""

from collections.abc import Callable
from typing import Any

from attention_jax import backends
from attention_jax.models.language_model import LanguageModel
from attention_jax.models.transformer import Transformer
from attention_jax.modules.transformer import LayerSpec
from attention_jax.ops import naming

PASSES = 3  # a product of the forward pass has two of its size in the backward pass
WITH_PRODUCT = ("dot", "scaled_dot", "bilinear", "cosine", "gaussian", "l2")  # scores that multiply queries and keys

# What families multiply for each pair of a query and a key beside its features, once for scores and once for values.
MORE: dict[str, Callable[[LayerSpec], int]] = {
    "talking": lambda spec: 2 * spec.heads**2,
    "differential": lambda spec: spec.width,
    "selective": lambda spec: spec.width // spec.heads if _has_product(spec) else 0,
}


def counted(model: Any) -> Any:
    """The same model in the form whose products are counted."""
    if isinstance(model, (LanguageModel, Transformer)):
        return model.clone(layer=model.layer._replace(backend="reference", remat="none"))
    return model.clone(backend="reference")


def in_sight(model: Any) -> Any:
    """The same model with all its products in its program: the reference's stand for those inside of fused kernels."""
    if backends.make_backend(model.backend).reads_caches:
        return model
    if isinstance(model, (LanguageModel, Transformer)):
        return model.clone(layer=model.layer._replace(backend="reference"))
    return model.clone(backend="reference")


def beyond_causality(model: Any, rows: int, length: int) -> float:
    """The FLOPs of a step's products of queries and later keys, of weights and later values: 0 without causal layers.

    A product of a layer is 2 · rows · width · T² forward, of which T(T + 1)/2 pairs are causal; families have more.
    """
    layers, spec = _causal_layers(model)
    if not layers:
        return 0.0
    more = MORE.get(naming.parse(spec.family)[0], lambda spec: 0)(spec)
    features = (2 if _has_product(spec) else 1) * spec.width + more
    return PASSES * layers * 2.0 * rows * features * length * (length - 1) / 2


def _has_product(spec: LayerSpec) -> bool:
    return naming.parse(spec.score)[0] in WITH_PRODUCT


def _causal_layers(model: Any) -> tuple[int, Any]:
    if isinstance(model, Transformer):
        return model.decoder_layers, model.layer
    if isinstance(model, LanguageModel) and model.layer.mixing.attends:
        return model.layers, model.layer
    return 0, None
