"""The kernels of `flex`: three walks over blocks of queries and keys, made out of functions of one pair.

Forward, a block of queries goes through the blocks of keys with a running peak, sum and pool (Dao 2023, alg. 1). The
gradients compute the weights of each block again, from the saved logarithm of their sum: one walk over keys for the
queries and the bias's numbers, one over queries for keys and values (alg. 2). No two instances of a kernel write to one
place, and each adds its blocks in their order: two runs give the same bits.

A score, a bias and the bend before the exponential are functions of blocks; `jax.vjp` of them, inside the kernel, is
their gradient.
"""

import functools
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attention_jax.backends.flex.inputs import turned
from attention_jax.backends.flex.walks import Inputs, Place, Plan, Walk, run
from attention_jax.ops.dropout import is_kept, joined

LOG2_E = math.log2(math.e)  # devices have powers of 2: exp(x) = 2^(x log₂ e)


def forward(plan: Plan, inputs: Inputs) -> tuple[Float[Array, "*batch q v"], Float[Array, "*batch q 1"]]:
    """The pooled values, and ln Σ exp of each query's scores: −∞ where it may attend to nothing."""
    kind, column, value = accumulator(inputs), (plan.sizes.queries, 1), inputs.value

    def start():
        values = jnp.zeros((plan.sizes.queries, value.shape[-1]), kind)
        return jnp.full(column, -jnp.inf, kind), jnp.zeros(column, kind), values

    def step(place, block, carried):
        peak_before, total, values = carried
        scores = _scores(plan, place, block, _product_of(plan, place, block)[0], block.numbers or ())
        scores = _masked(plan, place, block, scores.astype(kind))
        peak = jnp.maximum(peak_before, jnp.max(scores, axis=-1, keepdims=True))
        base = jnp.where(peak == -jnp.inf, 0, peak)
        weights, decay = (jnp.exp2(each * LOG2_E - base * LOG2_E) for each in (scores, peak_before))
        total = total * decay + jnp.sum(weights, axis=-1, keepdims=True)
        kept = _dropped(plan, place, block, weights).astype(block.value.dtype)
        return peak, total, values * decay + _product(kept, block.value, (1, 0))

    def finish(carried):
        peak, total, values = carried
        divisor = jnp.where(total == 0, 1, total)
        log_total = jnp.where(total == 0, -jnp.inf, peak + jnp.log(divisor))
        return (values / divisor).astype(value.dtype), log_total

    values, total = run(plan, Walk("queries", "keys", start, step, finish), inputs)
    return _joined(values), _joined(total)


def of_queries(plan: Plan, inputs: Inputs) -> tuple[Float[Array, "*batch q d"], Float[Array, "*batch 1 n"]]:
    """The gradients of the queries, and of the bias's numbers: each block's part, and then their sum."""
    kind, size = accumulator(inputs), inputs.query.shape[-1]
    width = 1 if inputs.numbers is None else _power_of_2(inputs.numbers.shape[-1])

    def start():
        return jnp.zeros((plan.sizes.queries, size), kind), jnp.zeros((1, width), kind)

    def step(place, block, carried):
        product, of_own = _product_of(plan, place, block)
        scores, pull = jax.vjp(functools.partial(_scores, plan, place, block), product, block.numbers or ())
        of_weights = _product(block.gradient, block.value, (1, 1))
        of_product, of_numbers = pull(_gradients(plan, place, block, scores, of_weights)[1])
        return carried[0] + of_own(of_product), carried[1] + _vector(of_numbers, place.number, carried[1])

    finish = functools.partial(_scaled, plan)
    of_query, of_numbers = run(plan, Walk("queries", "keys", start, step, finish), inputs)
    return _joined(of_query), jnp.sum(of_numbers, axis=-3)


def of_keys(plan: Plan, inputs: Inputs) -> tuple[Float[Array, "*batch k d"], Float[Array, "*batch k v"]]:
    """The gradients of the keys and of the values."""
    plan, inputs = turned(plan, inputs)
    kind = accumulator(inputs)
    sizes = inputs.key.shape[-1], inputs.value.shape[-1]

    def start():
        return tuple(jnp.zeros((plan.sizes.keys, size), kind) for size in sizes)

    def step(place, block, carried):
        block = _turned(block)
        product, of_own = _product_of(plan, place, block)
        scores, pull = jax.vjp(lambda product: _scores(plan, place, block, product, block.numbers or ()), product)
        of_weights = _product(block.value, block.gradient, (1, 1))
        kept, of_scores = _gradients(plan, place, block, scores, of_weights)
        of_value = _product(kept.astype(block.gradient.dtype), block.gradient, (1, 0))
        return carried[0] + of_own(pull(of_scores)[0]), carried[1] + of_value

    of_key, of_value = run(plan, Walk("keys", "queries", start, step, functools.partial(_scaled, plan)), inputs)
    return _joined(of_key), _joined(of_value)


def _scaled(plan: Plan, carried: tuple[Array, Array]) -> tuple[Array, Array]:
    """The gradient of queries or keys times what `_product_of` leaves out of it, and the other one."""
    return carried[0] * (1.0 if plan.scale is None else plan.scale), carried[1]


def accumulator(inputs: Inputs):
    """The dtype of sums: float32 or more."""
    return jnp.promote_types(jnp.result_type(inputs.query, inputs.key, inputs.value), jnp.float32)


def _joined(of_blocks: Float[Array, "*batch blocks rows columns"]) -> Float[Array, "*batch n columns"]:
    return of_blocks.reshape(*of_blocks.shape[:-3], -1, of_blocks.shape[-1])


def _power_of_2(number: int) -> int:
    """The power of 2 from the number on: what vectors in kernels for GPUs must have."""
    return 1 << (number - 1).bit_length()


def _product_of(plan: Plan, place: Place, block: Inputs) -> tuple[Array, Callable[[Array], Array]]:
    """The score of the block, [own, walked], and what its gradient gives the block that is the kernel's own.

    Of a multiple of qᵀk gradients are products in the blocks' dtype, as the score is, without the multiple; of another
    score JAX finds them, in the dtype of sums.
    """
    is_turned = place.of == "keys"
    own, walked = (block.key, block.query) if is_turned else (block.query, block.key)
    if (scale := plan.scale) is not None:
        pull = lambda change: _product(change.astype(walked.dtype), walked, (1, 0))  # noqa: E731
        return _product(own, walked, (1, 1)) * scale, pull
    kind = accumulator(block)
    score = (lambda key, query: plan.score(query, key).T) if is_turned else plan.score
    product, pull_both = jax.vjp(score, own.astype(kind), walked.astype(kind))
    return product, lambda change: pull_both(change)[0]


def _turned(block: Inputs) -> Inputs:
    """The block with what is read of pairs as [k, q]."""
    pairs = block.masks, block.positions, block.rows
    masks, positions, rows = jax.tree.map(lambda array: array.T if array.ndim else array, pairs)
    return block._replace(masks=masks, positions=positions, rows=rows)


def _scores(plan: Plan, place: Place, block: Inputs, product: Array, numbers: Sequence[Array]) -> Array:
    """The scores of a block, before its mask."""
    if plan.bias is None:
        return plan.bend(product)
    return plan.bend(product + (plan.bias(numbers, *block.positions) if place.number is None else numbers[0]))


def _masked(plan: Plan, place: Place, block: Inputs, scores: Array) -> Array:
    """The scores, −∞ where the rules forbid; a full block asks no rule."""
    if not plan.rules:
        return scores

    def partly(scores):
        given = zip(plan.rules, block.masks, strict=True)
        found = (allows(*_indices(plan, place), *arrays) for (allows, _), arrays in given)
        return jnp.where(functools.reduce(lambda one, other: one & other, found), scores, -jnp.inf)

    if isinstance(place.is_full, bool):
        return scores if place.is_full else partly(scores)
    return jax.lax.cond(place.is_full, lambda scores: scores, partly, scores)


def _gradients(plan: Plan, place: Place, block: Inputs, scores: Array, of_kept: Array) -> tuple[Array, Array]:
    """The weights after dropout, and the gradient of the scores, from that of the weights after dropout."""
    weights = jnp.exp2(_masked(plan, place, block, scores) * LOG2_E - block.rows[0])
    of_weights = _dropped(plan, place, block, of_kept)
    return _dropped(plan, place, block, weights), weights * (of_weights - block.rows[1])


def _dropped(plan: Plan, place: Place, block: Inputs, weights: Array) -> Array:
    """The weights times dropout's factors, from the indices of queries and keys."""
    if block.drops is None:
        return weights
    query_index, key_index = (index.astype(jnp.uint32) for index in _indices(plan, place))
    bits = joined(joined(block.drops.bits, query_index + block.drops.first), key_index)
    return jnp.where(is_kept(bits, block.drops.threshold), weights * block.drops.gain, 0)


def _indices(plan: Plan, place: Place) -> tuple[Int[Array, "q 1"], Int[Array, "1 k"]]:
    """Of the queries and the keys of a block; turned where it is."""
    rows, columns = (1, 0) if place.of == "keys" else (0, 1)  # the axes of queries and of keys
    return (
        place.queries * plan.sizes.queries + _counted(plan.sizes.queries, rows),
        place.keys * plan.sizes.keys + _counted(plan.sizes.keys, columns),
    )


def _counted(size: int, axis: int) -> Int[Array, "q k"]:
    """0, 1, … along an axis."""
    return jax.lax.broadcasted_iota(jnp.int32, (size, 1) if axis == 0 else (1, size), axis)


def _product(a: Array, b: Array, contracted: tuple[int, int]) -> Array:
    kind = jnp.promote_types(b.dtype, jnp.float32)
    dimensions = (((contracted[0],), (contracted[1],)), ((), ()))
    return jax.lax.dot_general(a, b, dimensions, preferred_element_type=kind)


def _vector(numbers: Sequence[Array], first: Array | None, like: Float[Array, "1 n"]) -> Float[Array, "1 n"]:
    """Scalars as one vector, which kernels cannot stack: from its beginning, or from `first` on."""
    index = jax.lax.broadcasted_iota(jnp.int32, like.shape, 1) - (0 if first is None else first)
    each = (jnp.where(index == at, number, 0) for at, number in enumerate(numbers))
    return sum(each, jnp.zeros_like(like))
