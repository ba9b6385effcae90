"""The estimators: what each makes of a query and of pairs, and the numbers that it may be given."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from attention_jax.errors import UserError
from attention_jax.ops.features import orthogonal_directions, positive_features
from attention_jax.ops.masking import masked_normalize
from attention_jax.ops.pooling import attend, kernel_regression, pool
from attention_jax.ops.regression import delta_rule, gradient_step, kernel_ridge, local_linear, ridge
from attention_jax.ops.scoring import dot

WIDTHS = (0.1, 0.15, 0.22, 0.33, 0.5, 0.75, 1.1, 1.6, 2.4, 3.6, 5.4, 8.0)  # times √d, as distances between points are
PENALTIES = (0.001, 0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
RATES = (0.05, 0.1, 0.2, 0.3, 0.45, 0.65, 0.8, 0.9, 1.0)


class Estimator(NamedTuple):
    """`apply(key, query, keys, values, *numbers)` → the estimate `[Q, V]`; `key` is for what draws.

    `numbers` has the choices for each number.
    """

    formula: str
    apply: Callable[..., Float[Array, "q v"]]
    numbers: tuple[tuple[float, ...], ...] = ()

    @property
    def choices(self) -> Float[Array, "choices numbers"]:
        """Every combination of numbers."""
        return jnp.array([*itertools.product(*self.numbers)], jnp.float32)


def attention(key: Key[Array, ""], query: Array, keys: Array, values: Array, width: Array) -> Array:
    """Softmax over the Gaussian score."""
    del key
    return attend(query, keys, values, score="gaussian", score_params=(_wide(width, keys),))


def nadaraya_watson(key: Key[Array, ""], query: Array, keys: Array, values: Array, width: Array) -> Array:
    """Kernel regression, by its own formula."""
    del key
    return kernel_regression(query, keys, values, width=_wide(width, keys))


def dot_attention(key: Key[Array, ""], query: Array, keys: Array, values: Array, width: Array) -> Array:
    """Softmax over qᵀk / width², as a Transformer has it: the Gaussian without the norms of keys."""
    del key
    return attend(query / _wide(width, keys) ** 2, keys, values, score=dot)


def dot_attention_with_norms(key: Key[Array, ""], query: Array, keys: Array, values: Array, width: Array) -> Array:
    """Softmax over (qᵀk − ‖k‖² / 2) / width²: the Gaussian score, but for ‖q‖², which all keys have in common."""
    del key
    temperature = _wide(width, keys) ** 2
    norms_1xK = jnp.sum(jnp.square(keys), axis=-1)[None] / (2 * temperature)
    return attend(query / temperature, keys, values, score=dot, bias=-norms_1xK)


def random_features(
    key: Key[Array, ""], query: Array, keys: Array, values: Array, width: Array | float, count: int = 64
) -> Array:
    """Linear attention with positive orthogonal random features of the Gaussian kernel.

    φ(q)ᵀφ(k) exp(−‖k‖² / 2) is the kernel on average, but for a factor of q alone (Choromanski et al. 2021, §2.3). A
    query whose products are all too small for a float gets the mean.
    """
    scale = _wide(width, keys)
    directions = orthogonal_directions(key, count, keys.shape[-1])
    query_QxF, key_KxF = positive_features(query / scale, directions), positive_features(keys / scale, directions)
    norms_Kx1 = jnp.sum(jnp.square(keys / scale), axis=-1, keepdims=True)
    return pool(masked_normalize(dot(query_QxF, key_KxF * jnp.exp(-norms_Kx1 / 2)), None, "mean"), values)


ESTIMATORS = {
    "mean": Estimator("v̄", lambda key, q, k, v: jnp.broadcast_to(jnp.mean(v, axis=0), (len(q), v.shape[-1]))),
    "attention": Estimator("softmax of −‖q − k‖² / 2σ²", attention, (WIDTHS,)),
    "dot_attention": Estimator("softmax of qᵀk / σ²", dot_attention, (WIDTHS,)),
    "random_features": Estimator("φ(q)ᵀφ(k), 64 positive features", random_features, (WIDTHS[2:],)),
    "local_linear": Estimator(
        "the same weights, a line instead of a mean",
        lambda key, q, k, v, width, penalty: local_linear(q, k, v, _wide(width, k), penalty),
        (WIDTHS, PENALTIES[:6]),
    ),
    "kernel_ridge": Estimator(
        "K(q, k) (K(k, k) + λI)⁻¹ v",
        lambda key, q, k, v, width, penalty: kernel_ridge(q, k, v, _wide(width, k), penalty),
        (WIDTHS[4:], PENALTIES[:6]),
    ),
    "ridge": Estimator("vᵀk (kᵀk + λI)⁻¹ q", lambda key, q, k, v, penalty: ridge(q, k, v, penalty), (PENALTIES,)),
    "gradient_step": Estimator(
        "η Σ v (kᵀq): one step from 0", lambda key, q, k, v, rate: gradient_step(q, k, v, rate / len(k)), (RATES,)
    ),
    "delta_rule": Estimator(
        "W += β (v − W k) kᵀ, pair by pair",
        lambda key, q, k, v, rate: delta_rule(q, k, v, rate / (k.shape[-1] + 2)),
        (RATES,),
    ),
}


def chosen(names: Sequence[str], key: str = "config.estimators") -> dict[str, Estimator]:
    """The estimators of these names. Raises UserError that opens with the config's `key` for another, and for none."""
    for name in names:
        if name not in ESTIMATORS:
            raise UserError(f"{key}: no estimator {name!r}: choose of {', '.join(ESTIMATORS)}.")
    if not names:
        raise UserError(f"{key}=(): choose of {', '.join(ESTIMATORS)}.")
    return {name: ESTIMATORS[name] for name in names}


def _wide(width: Array | float, keys: Float[Array, "k d"]) -> Array | float:
    return width * math.sqrt(keys.shape[-1])
