"""Attention scores: how well a key answers a query.

Every score maps a query `[..., Q, Dq]` and a key `[..., K, Dk]` to `[..., Q, K]`. Parameters are
arguments, in the formula's order, and multiply from the right. Products accumulate in float32, and
scores of bfloat16 inputs are float32, because the softmax after them needs the digits.
"""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from attention_jax.ops import naming
from attention_jax.ops.kernels import KERNELS
from attention_jax.ops.naming import more_than_0, truth, whole
from attention_jax.ops.shapes import require_batch, require_choice, require_same_size, require_shape

Query = Float[Array, "*#batch q d"]
Key = Float[Array, "*#batch k d"]
Scores = Float[Array, "*batch q k"]
Scalar = Float[Array, ""] | float


def dot(query: Query, key: Key) -> Scores:
    """qᵀk (Luong et al. 2015, §3.1, "dot"). Raises ValueError where the feature sizes differ."""
    _require_equal_sizes(query, key)
    return jnp.einsum("...qd,...kd->...qk", query, key, preferred_element_type=_accumulator(query, key))


def scaled_dot(query: Query, key: Key) -> Scores:
    """qᵀk / √d (Vaswani et al. 2017, eq. 1): unit variance for independent unit-variance features."""
    return dot(query, key) / math.sqrt(query.shape[-1])


def bilinear(
    query: Float[Array, "*#batch q dq"], key: Float[Array, "*#batch k dk"], matrix: Float[Array, "dq dk"]
) -> Scores:
    """qᵀ M k (Luong et al. 2015, §3.1, "general"); q and k may differ in size."""
    require_shape("matrix", matrix, (query.shape[-1], key.shape[-1]), _sizes(query, key))
    return dot(_project(query, matrix), key)


def additive(
    query: Float[Array, "*#batch q dq"],
    key: Float[Array, "*#batch k dk"],
    w_q: Float[Array, "dq h"],
    w_k: Float[Array, "dk h"],
    w_v: Float[Array, " h"],
) -> Scores:
    """w_vᵀ tanh(W_q q + W_k k), without bias (Bahdanau et al. 2015, A.1.2). Memory is [..., Q, K, H]."""
    require_shape("w_v", w_v, w_v.shape[-1:] or (0,), "it is one vector [H]")
    hidden = w_v.shape[-1]
    require_shape("w_q", w_q, (query.shape[-1], hidden), _sizes(query, w_v=w_v))
    require_shape("w_k", w_k, (key.shape[-1], hidden), _sizes(key=key, w_v=w_v))
    return additive_projected(_project(query, w_q), _project(key, w_k), w_v)


def additive_projected(
    query: Float[Array, "*#batch q h"], key: Float[Array, "*#batch k h"], w_v: Float[Array, " h"]
) -> Scores:
    """w_vᵀ tanh(q + k) of a projected query and a projected key; a decoder projects its memory once."""
    require_batch(query=query, key=key)
    require_same_size(-1, query=query, key=key)
    require_shape("w_v", w_v, (query.shape[-1],), _sizes(query, key))
    hidden_QxKxH = jnp.tanh(query[..., :, None, :] + key[..., None, :, :])
    return jnp.einsum("...h,h->...", hidden_QxKxH, w_v, preferred_element_type=_accumulator(query, key))


def concat(
    query: Float[Array, "*#batch q dq"],
    key: Float[Array, "*#batch k dk"],
    w: Float[Array, "dq+dk h"],
    w_v: Float[Array, " h"],
) -> Scores:
    """w_vᵀ tanh(W [q; k]) (Luong et al. 2015, §3.1, "concat"): `additive` with W split between q and k."""
    size = query.shape[-1]
    require_shape("w", w, (size + key.shape[-1], w_v.shape[-1]), _sizes(query, key))
    return additive(query, key, w[:size], w[size:], w_v)


def gaussian(query: Query, key: Key, width: Scalar = 1.0) -> Scores:
    """−‖q − k‖² / 2σ², σ = `width`, without forming q − k; softmax over it is Nadaraya–Watson regression (1964).

    ‖q − k‖² = ‖q‖² − 2 qᵀk + ‖k‖² loses digits if ‖q‖² is much larger than ‖q − k‖²: far from the origin use
    `kernels.kernel_weights`.
    """
    require_shape("width", jnp.asarray(width), (), "one width serves every query and key")
    return -_squared_distance(query, key) / (2 * width**2)


def kernel(query: Query, key: Key, name: str = "gaussian", width: Scalar = 1.0) -> Scores:
    """K(‖q − k‖ / width), a weight ≥ 0 and no logarithm of one: for `normalize="sum"` (Nadaraya 1964).

    `name` is one of `KERNELS`.
    """
    require_choice("name", name, tuple(KERNELS))
    return KERNELS[name].of_squared(_squared_distance(query, key) / width**2)


def l2(query: Query, key: Key) -> Scores:
    """−‖q − k‖² / √d (Kim et al. 2021, §3.2): unlike a product's, its attention is Lipschitz where W_q = W_k."""
    return -_squared_distance(query, key) / math.sqrt(query.shape[-1])


def laplacian(query: Query, key: Key, width: Scalar = 1.0) -> Scores:
    """−‖q − k‖₁ / `width`; softmax over it is Nadaraya–Watson regression by Laplace's kernel (Rahimi & Recht 2007).

    Memory may be [..., Q, K, D], where the compiler does not fuse the sum.
    """
    _require_equal_sizes(query, key)
    require_shape("width", jnp.asarray(width), (), "one width serves every query and key")
    query, key = (x.astype(_accumulator(query, key)) for x in (query, key))
    apart = query[..., :, None, :] - key[..., None, :, :]
    return -jnp.sum(jnp.abs(apart), axis=-1) / width


def cosine(query: Query, key: Key, temperature: Scalar = 1.0) -> Scores:
    """qᵀk / (‖q‖ ‖k‖ τ) (Graves et al. 2014, eq. 6; τ learned in Henry et al. 2020, §3); zero at a zero vector."""
    require_shape("temperature", jnp.asarray(temperature), (), "one temperature serves every query and key")
    inverse_query, inverse_key = _inverse_norm(query), _inverse_norm(key)
    return dot(query, key) * inverse_query[..., :, None] * inverse_key[..., None, :] / temperature


def location(query: Query, w: Float[Array, "d longest"], num_keys: int) -> Scores:
    """W q, a score for each position of a key; the keys' features are not read (Luong et al. 2015, eq. 8).

    Raises ValueError for more keys than W has columns.
    """
    require_shape("w", w, (query.shape[-1], w.shape[-1]), _sizes(query))
    if num_keys > w.shape[-1]:
        raise ValueError(f"there are {num_keys} keys, and w {w.shape} has room for {w.shape[-1]}: raise longest.")
    return jnp.einsum("...qd,dk->...qk", query, w[:, :num_keys], preferred_element_type=_accumulator(query, w))


def zero(query: Float[Array, "*#batch q dq"], key: Float[Array, "*#batch k dk"]) -> Scores:
    """0 for every key: attention by bias alone, or average pooling without a bias."""
    require_batch(query=query, key=key)
    batch = np.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    return jnp.zeros((*batch, query.shape[-2], key.shape[-2]), _accumulator(query, key))


def _glorot(key: Array, shape: tuple[int, ...], dtype=jnp.float32) -> Array:
    """Uniform in ±√(6 / (fan in + fan out)) (Glorot & Bengio 2010, eq. 16); a vector maps to one output."""
    limit = math.sqrt(6 / (sum(shape) if len(shape) > 1 else shape[0] + 1))
    return jax.random.uniform(key, shape, dtype, -limit, limit)


class Projected(NamedTuple):
    """A score as `apply(q W_q, k W_k, *params)`: a decoder can project its keys once. None: not projected."""

    apply: Callable
    w_q: Float[Array, "dq h"] | None = None
    w_k: Float[Array, "dk h"] | None = None
    params: tuple = ()


class Score(NamedTuple):
    """A score, and the shapes of its parameters: (query size, key size, hidden size) → {name: shape}.

    `initializer(key, shape, dtype)` draws them. `project(query size, *params)` gives its `Projected` form; None: it
    projects nothing. `needs_equal_sizes`: query and key must have equally many features. `is_weight`: it is a weight
    ≥ 0, not the logarithm of one. `room`: how many keys it has room for, if it scores keys by their position; None: any
    number.
    """

    apply: Callable
    shapes: Callable[[int, int, int], dict[str, tuple[int, ...]]] = lambda query, key, hidden: {}
    project: Callable[..., Projected] | None = None
    needs_equal_sizes: bool = False
    is_weight: bool = False
    room: int | None = None
    initializer: Callable = _glorot

    def projected(self, query_size: int, *params: Array) -> Projected:
        """The score in its projected form; without a `project`, with no projections."""
        return self.project(query_size, *params) if self.project else Projected(self.apply, params=params)

    def init_with(self, param: Callable, query_size: int, key_size: int, hidden: int = 0, dtype=jnp.float32) -> tuple:
        """The parameters in the formula's order, made by `param(name, initializer, shape, dtype)`."""
        shapes = self.shapes(query_size, key_size, hidden)
        return tuple(param(name, self.initializer, shape, dtype) for name, shape in shapes.items())

    def init(self, key: Array, query_size: int, key_size: int, hidden: int = 0, dtype=jnp.float32) -> tuple:
        """Fresh parameters from a random key, in the formula's order."""
        keys = iter(jax.random.split(key, 4))
        return self.init_with(lambda name, make, *args: make(next(keys), *args), query_size, key_size, hidden, dtype)


def _bound(score: Callable, **options: float | None) -> Callable:
    """The score with the options that are not None. Raises ValueError unless each is a number more than 0."""
    given = {name: more_than_0(name, value) for name, value in options.items() if value is not None}
    return functools.partial(score, **given) if given else score


def _scaled(score: Callable, name: str, value: float | None, learned: bool) -> Score:
    """A score whose scale is the option `name`; if `learned`, that times exp(s), which is more than 0 for every s.

    s is one number a layer, from 0 on.
    """
    bound = _bound(score, **{name: value})
    if not truth("learned", learned):
        return Score(bound, needs_equal_sizes=True)
    start = 1.0 if value is None else value
    shapes: dict[str, tuple[int, ...]] = {f"log_{name}": ()}
    return Score(
        lambda query, key, s: score(query, key, start * jnp.exp(s.astype(_accumulator(s)))),
        lambda q, k, h: shapes,
        needs_equal_sizes=True,
        initializer=jax.nn.initializers.zeros,
    )


def _kernels(name: str) -> Callable:
    require_choice("name", name, tuple(KERNELS))
    return functools.partial(kernel, name=name)


def _additive(hidden: int = 0) -> Score:
    """`additive`, with `hidden` features in its network; 0: as many as the model's layers have."""
    own = whole("hidden", hidden, least=0)
    return Score(
        additive,
        lambda q, k, h: {"w_q": (q, own or h), "w_k": (k, own or h), "w_v": (own or h,)},
        lambda q, w_q, w_k, w_v: Projected(additive_projected, w_q, w_k, (w_v,)),
    )


def _concat(hidden: int = 0) -> Score:
    """`concat`; `hidden` as in `_additive`."""
    own = whole("hidden", hidden, least=0)
    return Score(
        concat,
        lambda q, k, h: {"w": (q + k, own or h), "w_v": (own or h,)},
        lambda q, w, w_v: Projected(additive_projected, w[:q], w[q:], (w_v,)),
    )


def _location(longest: int = 64) -> Score:
    return Score(
        lambda query, key, w: location(query, w, key.shape[-2]),
        lambda q, k, h: {"w": (q, longest)},
        room=whole("longest", longest),
    )


BUILDERS: dict[str, Callable[..., Score]] = {
    "dot": lambda: Score(dot, needs_equal_sizes=True),
    "scaled_dot": lambda: Score(scaled_dot, needs_equal_sizes=True),
    "bilinear": lambda: Score(
        bilinear, lambda q, k, h: {"matrix": (q, k)}, lambda q, matrix: Projected(dot, w_k=matrix.T)
    ),
    "additive": _additive,
    "concat": _concat,
    "gaussian": lambda width=None, learned=False: _scaled(gaussian, "width", width, learned),
    "l2": lambda: Score(l2, needs_equal_sizes=True),
    "laplacian": lambda width=None, learned=False: _scaled(laplacian, "width", width, learned),
    "kernel": lambda name="gaussian", width=None: Score(
        _bound(_kernels(name), width=width), needs_equal_sizes=True, is_weight=True
    ),
    "cosine": lambda temperature=None, learned=False: _scaled(cosine, "temperature", temperature, learned),
    "location": _location,
    "zero": lambda: Score(zero),
}
SCORES: dict[str, Score] = {name: build() for name, build in BUILDERS.items()}


@functools.cache
def make_score(text: str, key: str = "score") -> Score:
    """The score that a text names, with options: "gaussian:width=2", "kernel:name=boxcar", "additive:hidden=64".

    Raises ValueError for another name or option; `key` is what the error calls the text.
    """
    return naming.build(key, text, BUILDERS)


def _require_equal_sizes(query: Array, key: Array) -> None:
    require_batch(query=query, key=key)
    if query.shape[-1] != key.shape[-1]:
        raise ValueError(
            f"query {query.shape} has {query.shape[-1]} features and key {key.shape} has {key.shape[-1]}: "
            "this score needs equal sizes; `bilinear`, `additive` and `concat` do not."
        )


def _project(x: Array, matrix: Array) -> Array:
    projected = jnp.einsum("...d,dh->...h", x, matrix, preferred_element_type=_accumulator(x, matrix))
    return projected.astype(jnp.result_type(x, matrix))


def _squared_distance(query: Query, key: Key) -> Scores:
    """‖q − k‖² = ‖q‖² − 2 qᵀk + ‖k‖², at least 0, with the derivatives of what is not cut off."""
    _require_equal_sizes(query, key)
    squared = _norm2(query)[..., :, None] - 2 * dot(query, key) + _norm2(key)[..., None, :]
    return jnp.where(squared > 0, squared, squared - jax.lax.stop_gradient(squared))


def _norm2(x: Array) -> Array:
    return jnp.sum(jnp.square(x.astype(_accumulator(x))), axis=-1)


def _inverse_norm(x: Array) -> Array:
    """1 / ‖x‖, and 0 at a zero vector: of x over its largest feature, so that no square overflows or vanishes."""
    x_f32 = x.astype(_accumulator(x))
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(x_f32), axis=-1, keepdims=True, initial=0))
    is_zero = largest == 0
    largest = jnp.where(is_zero, 1, largest)
    squared = jnp.where(is_zero, 1, jnp.sum(jnp.square(x_f32 / largest), axis=-1, keepdims=True))
    return jnp.where(is_zero, 0, jax.lax.rsqrt(squared) / largest)[..., 0]


def _accumulator(*arrays: Array):
    return jnp.promote_types(jnp.result_type(*arrays), jnp.float32)


def _sizes(query: Array | None = None, key: Array | None = None, **others: Array) -> str:
    arrays = {"query": query, "key": key, **others}
    return ", ".join(f"{name} is {a.shape}" for name, a in arrays.items() if a is not None)
