"""What predictions become when other weights stand in place of a translator's attention to its source.

Weights are those of every layer and head, `[batch, layers, heads, target, source]`; what replaces a row has its sum.
"""

import functools
import operator
from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Key

from attention_jax.data.tokenizers import PAD
from attention_jax.ops.divergence import TINY, jensen_shannon, total_variation
from attention_jax.ops.masking import masked_softmax
from attention_jax.tasks.explanation.importance import KIND, Batch, predictions, replacing, weights_of
from attention_jax.training.state import Variables

Weights = Float[Array, "batch l h t s"]
PENALTY = 500.0  # on what predictions move beyond ε (Jain & Wallace 2019, appendix C.2)
MARGIN = 0.8  # of ε: beyond it the penalty begins, so that steps that overshoot may still be within ε
NOISE = 1.0  # of the logits at the start: where nothing has moved the divergence has no gradient


class Changed(NamedTuple):
    """Other weights, and of each target word how far they are from the model's own and how far its prediction moved.

    Distances of weights are means over layers and heads. Predictions are distributions over the vocabulary, and
    `is_flipped` says whether the likeliest word is another.
    """

    weights: Weights
    jensen_shannon_of_weights: Float[Array, "batch t"]
    total_variation_of_weights: Float[Array, "batch t"]
    total_variation: Float[Array, "batch t"]
    is_flipped: Bool[Array, "batch t"]


Draw = Callable[[Weights, Bool[Array, "batch 1 1 1 s"], Key[Array, ""]], Weights]


def uniform(weights: Weights, valid: Array, key: Array) -> Weights:
    """All words alike."""
    del key
    return jnp.broadcast_to(valid / jnp.sum(valid, axis=-1, keepdims=True), weights.shape)


def permuted(weights: Weights, valid: Array, key: Array) -> Weights:
    """Each row in a random order (Jain & Wallace 2019, §4.2.1)."""
    drawn = jnp.where(valid, jax.random.uniform(key, weights.shape), jnp.inf)  # padding stays last
    return jnp.take_along_axis(weights, jnp.argsort(drawn, axis=-1), axis=-1)


def without_highest(weights: Weights, valid: Array, key: Array) -> Weights:
    """Each row's largest weight zeroed, the others scaled to sum to one (Serrano & Smith 2019, §4).

    Where all weight is the largest, the other words get it alike.
    """
    del key
    return _without(weights, jnp.argmax(weights, axis=-1), valid)


def without_another(weights: Weights, valid: Array, key: Array) -> Weights:
    """A random weight zeroed that is not its row's largest, the others scaled to sum to one; of one word none is."""
    is_highest = jax.nn.one_hot(jnp.argmax(weights, axis=-1), weights.shape[-1], dtype=bool)
    drawn = jnp.where(valid & ~is_highest, jax.random.uniform(key, weights.shape), -1)
    changed = _without(weights, jnp.argmax(drawn, axis=-1), valid)
    return jnp.where(jnp.max(drawn, axis=-1, keepdims=True) < 0, weights, changed)


DRAWS: dict[str, Draw] = {
    "uniform": uniform,
    "permuted": permuted,
    "without_highest": without_highest,
    "without_another": without_another,
}


def intervene(model: nn.Module, variables: Variables, batch: Batch, key: Key[Array, ""]) -> dict[str, Changed]:
    """What becomes of predictions under the weights that each of `DRAWS` makes of the model's own."""
    weights, before = weights_of(model, variables, batch)[KIND], predictions(model, variables, batch)
    valid, total = (batch["source"] != PAD)[:, None, None, None], jnp.sum(weights, axis=-1, keepdims=True)
    drawn = jnp.stack([draw(_of_sum_one(weights), valid, key) * total for draw in DRAWS.values()])
    found = jax.lax.map(functools.partial(_changed, model, variables, batch, before, weights), drawn)
    return {name: jax.tree.map(operator.itemgetter(index), found) for index, name in enumerate(DRAWS)}


def adversary(
    model: nn.Module, steps: int, rate: float, variables: Variables, batch: Batch, epsilon: Array, key: Key[Array, ""]
) -> Changed:
    """The weights α̃ that are farthest from the model's, found by Adam on their logits (Jain & Wallace 2019, §4.2.2).

    max Σ JS(α, α̃) where no word's prediction moves by more than a total variation of ε. Of all steps that of each
    sentence counts whose weights are farthest among those within ε at every word; the model's own always are.
    """
    weights = weights_of(model, variables, batch)[KIND]
    valid, total = (batch["source"] != PAD)[:, None, None, None], jnp.sum(weights, axis=-1, keepdims=True)
    own, before = _of_sum_one(weights), predictions(model, variables, batch)
    is_word = batch["target"] != PAD
    rule = optax.adam(rate)

    def moved(logits):
        other = masked_softmax(logits, valid)
        after = predictions(model, variables, batch, replacing(other * total))
        far = jnp.sum(jnp.mean(jensen_shannon(own, other), axis=(1, 2)) * is_word, axis=-1)
        worst = jnp.where(is_word, total_variation(jnp.exp(before), jnp.exp(after)), 0)
        lost = jnp.sum(PENALTY * jnp.maximum(worst - MARGIN * epsilon, 0)) - jnp.sum(far)
        return lost, (other, far, jnp.max(worst, axis=-1))

    def advance(carry, _):
        logits, state, best, farthest = carry
        gradient, (other, far, worst) = jax.grad(moved, has_aux=True)(logits)
        is_better = (worst <= epsilon) & (far > farthest)
        best = jnp.where(is_better[:, None, None, None, None], other, best)
        updates, state = rule.update(gradient, state)
        return (logits + updates, state, best, jnp.where(is_better, far, farthest)), None

    logits = jnp.log(jnp.maximum(own, 1e-6)) + NOISE * jax.random.normal(key, own.shape)
    start = logits, rule.init(logits), own, jnp.zeros(len(own))
    best = jax.lax.scan(advance, start, length=steps)[0][2]
    return _changed(model, variables, batch, before, weights, best * total)


def _changed(
    model: nn.Module, variables: Variables, batch: Batch, before: Array, own: Weights, weights: Weights
) -> Changed:
    """What `weights` make of the model's predictions, which were `before` under its own."""
    pair, after = (_of_sum_one(own), _of_sum_one(weights)), predictions(model, variables, batch, replacing(weights))
    return Changed(
        weights,
        jnp.mean(jensen_shannon(*pair), axis=(1, 2)),
        jnp.mean(total_variation(*pair), axis=(1, 2)),
        total_variation(jnp.exp(before), jnp.exp(after)),
        jnp.argmax(before, axis=-1) != jnp.argmax(after, axis=-1),
    )


def _without(weights: Weights, index: Array, valid: Array) -> Weights:
    """Rows without the weight at an index; what is 0 then is spread over the other words."""
    others = valid * (1 - jax.nn.one_hot(index, weights.shape[-1]))
    kept = weights * others
    largest = jnp.max(kept, axis=-1, keepdims=True)
    return _of_sum_one(jnp.where(largest > 0, kept / jnp.where(largest > 0, largest, 1), others))


def _of_sum_one(weights: Weights) -> Weights:
    """Rows divided by their sums; zeros stay."""
    return weights / jnp.maximum(jnp.sum(weights, axis=-1, keepdims=True), TINY)
