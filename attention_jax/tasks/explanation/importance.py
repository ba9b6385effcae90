"""How much each word that a translator writes rests on each word of its source: by gradients, and by erasure.

Functions of (model, variables, batch), teacher forced; `[batch, target, source]`, 0 at padding.
"""

from collections.abc import Callable, Mapping
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from attention_jax.data.tokenizers import PAD
from attention_jax.modules.attention import NO_EDITS, Edit, Edits
from attention_jax.ops.divergence import total_variation
from attention_jax.tasks.translation.model import lengths_of, shifted
from attention_jax.training.state import Variables

KIND = "cross"  # of attention
Importance = Float[Array, "batch t s"]
Batch = Mapping[str, Any]  # padded rows of tokens: "source" and "target"


def predictions(
    model: nn.Module, variables: Variables, batch: Batch, edits: Edits = NO_EDITS
) -> Float[Array, "batch t v"]:
    """log p of every next word."""
    arguments = batch["source"], lengths_of(batch["source"]), shifted(batch["target"])
    logits: Any = model.apply(variables, *arguments, None, edits)
    return jax.nn.log_softmax(logits)


def weights_of(model: nn.Module, variables: Variables, batch: Batch) -> dict[str, Float[Array, "batch l h q k"]]:
    """The weights of every layer and head, by kind of attention."""
    arguments = batch["source"], lengths_of(batch["source"]), shifted(batch["target"])
    kinds: Any = model.apply(variables, *arguments, method="attention")
    return {kind: heads.weights for kind, heads in kinds.items()}


def gradients(model: nn.Module, variables: Variables, batch: Batch, edits: Edits = NO_EDITS) -> Importance:
    """|x_s · ∂ log p(y_t) / ∂x_s| with x_s the embedding of source word s: gradient × input.

    It is the gradient by how often the word is there.
    """
    source, target = batch["source"], batch["target"]

    def log_p(scale):
        memory = _encoded(model, variables, source, scale)
        logits: Any = model.apply(variables, memory, shifted(target), None, edits, method="decode")
        return _of_words(jax.nn.log_softmax(logits), target)

    found, pulled = jax.vjp(log_p, jnp.ones(source.shape))
    each_word = jnp.broadcast_to(jnp.eye(target.shape[1])[:, None], (target.shape[1], *found.shape))
    of_words_TxBxS = jax.lax.map(lambda word: pulled(word)[0], each_word)
    return _known(jnp.abs(jnp.moveaxis(of_words_TxBxS, 0, 1)), batch)


def direct_gradients(model: nn.Module, variables: Variables, batch: Batch) -> Importance:
    """`gradients` with the weights of attention to the source held as they are: what does not go through these.

    So are those that attention is compared with by Jain & Wallace 2019, algorithm 1.
    """
    kinds = weights_of(model, variables, batch)
    return gradients(model, variables, batch, replacing(kinds[KIND]) if KIND in kinds else NO_EDITS)


def replacing(weights: Float[Array, "batch l h t s"]) -> Edits:
    """The edits that put weights in place of every layer's and head's attention to the source."""
    of_layers = jnp.moveaxis(weights, 1, 0)
    return {KIND: Edit(replaced=jnp.ones((len(of_layers), of_layers.shape[2]), bool), weights=of_layers)}


def erasure(model: nn.Module, variables: Variables, batch: Batch) -> Importance:
    """½ Σ_y |p(y | x) − p(y | x without word s)|, of y_t's: the word is left out, and the words after it move up.

    Leave-one-out with the total variation distance (Jain & Wallace 2019, algorithm 1).
    """
    source, target = batch["source"], batch["target"]
    indices = jnp.arange(source.shape[1])

    whole = jnp.exp(predictions(model, variables, batch))

    def moved(erased):
        kept = jnp.take(source, jnp.where(indices >= erased, indices + 1, indices), axis=1, fill_value=PAD)
        without = jnp.exp(predictions(model, variables, {"source": kept, "target": target}))
        return total_variation(whole, without)

    return _known(jnp.moveaxis(jax.lax.map(moved, indices), 0, -1), batch)


IMPORTANCE: dict[str, Callable[[nn.Module, Variables, Batch], Importance]] = {
    "gradients": gradients,
    "direct gradients": direct_gradients,
    "erasure": erasure,
}


def _encoded(model: nn.Module, variables: Variables, source: Array, scale: Float[Array, "batch s"]) -> Any:
    """The memory of sources whose embeddings are multiplied by `scale`."""

    def multiplied(call, arguments, keywords, context):
        found = call(*arguments, **keywords)
        is_embedding = isinstance(context.module, nn.Embed) and context.method_name == "__call__"
        return (found * scale[..., None]).astype(found.dtype) if is_embedding else found

    with nn.intercept_methods(multiplied):  # an encoder embeds nothing but its source
        return model.apply(variables, source, lengths_of(source), method="encode")


def _of_words(log_p: Float[Array, "batch t v"], target: Array) -> Float[Array, "batch t"]:
    return jnp.take_along_axis(log_p, target[..., None], axis=-1)[..., 0]


def _known(found: Importance, batch: Batch) -> Importance:
    return jnp.where((batch["target"] != PAD)[:, :, None] & (batch["source"] != PAD)[:, None], found, 0)
