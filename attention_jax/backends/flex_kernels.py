"""The kernels of `flex`: three walks over blocks of queries and keys, made out of functions of one pair.

Forward, a block of queries goes through the blocks of keys with a running peak, sum and pool (Dao 2023, alg. 1). The
gradients compute the weights of each block again, from the saved logarithm of their sum: one walk over keys for the
queries and the bias's numbers, one over queries for keys and values (alg. 2). No two instances of a kernel write to one
place, and each adds its blocks in their order: two runs give the same bits.

A score, a bias and the bend before the exponential are functions of blocks; `jax.vjp` of them, inside the kernel, is
their gradient. Blocks that the mask empties are not read.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from attention_jax.ops.dropout import is_kept, joined

EMPTY, PARTIAL, FULL = 0, 1, 2  # no pair of a block may attend; some may; all may


class Plan(NamedTuple):
    """What kernels are made of: functions and sizes, and no array.

    `rules` are (allows, what each of its arrays is read of); `blocks` are the queries and keys of a block, `counts` how
    many blocks there are.
    """

    score: Callable[[Array, Array], Array]
    bend: Callable[[Array], Array]
    bias: Callable[[Sequence[Array], Array, Array], Array] | None
    rules: tuple[tuple[Callable, tuple[str, ...]], ...]
    batch: tuple[int, ...]
    blocks: tuple[int, int]
    counts: tuple[int, int]


class Drops(NamedTuple):
    """Dropout in a kernel: each text's and head's hashed bits, the first query's index, the threshold and the gain."""

    bits: Any
    first: Any
    threshold: Any
    gain: Any


class Inputs(NamedTuple):
    """The arrays of a kernel; of each, the axes before the last two are the plan's `batch`, or 1.

    As arrays or as references to the memory of blocks. `gradient` is that of the values, and `rows` what gradients read
    of each query: the logarithm of the sum of its exponentials, and what the gradients of its scores are less.
    """

    query: Any  # [..., Q, D]
    key: Any  # [..., K, D]
    value: Any  # [..., K, V]
    kinds: Any  # [..., blocks of queries, blocks of keys]
    masks: tuple[tuple[Any, ...], ...]
    numbers: Any = None  # [..., 1, n]
    positions: Any = None  # [..., Q, 1] and [..., 1, K]
    drops: Drops | None = None
    gradient: Any = None  # [..., Q, V]
    rows: Any = None  # [..., Q, 2]


# The roles of arrays: how the last two axes are cut into blocks.
SMALL = "small"  # not at all: numbers that are read one by one
ROLE_OF = {"text": SMALL, "query": "query", "key": "key_row", "pair": "pair"}


def roles_of(plan: Plan, inputs: Inputs) -> Inputs:
    """The role of each array."""
    roles = Inputs("query", "key", "key", SMALL, tuple(tuple(ROLE_OF[of] for of in reads) for _, reads in plan.rules))
    return roles._replace(
        numbers=None if inputs.numbers is None else SMALL,
        positions=inputs.positions and ("query", "key_row"),
        drops=inputs.drops and Drops(*[SMALL] * 4),
        gradient=None if inputs.gradient is None else "query",
        rows=None if inputs.rows is None else "query",
    )


class Place(NamedTuple):
    """Which block of queries and which of keys, and whether all of its pairs may attend."""

    queries: Int[Array, ""]
    keys: Int[Array, ""]
    is_full: Any


class Walk(NamedTuple):
    """A reduction over the blocks of one axis, "queries" or "keys", for each block of the other.

    `start()` → what is carried, a tuple of arrays; `step(place, inputs, carried)` → the same after one more block;
    `finish(carried)` → the outputs, which are of these `roles` and `shapes`.
    """

    over: str
    start: Callable
    step: Callable
    finish: Callable
    roles: tuple[str, ...]
    shapes: tuple[jax.ShapeDtypeStruct, ...]


def forward(plan: Plan, inputs: Inputs) -> tuple[Float[Array, "*batch q v"], Float[Array, "*batch q 1"]]:
    """The pooled values, and ln Σ exp of each query's scores: −∞ where it may attend to nothing."""
    kind, value = accumulator(inputs), inputs.value
    queries = plan.blocks[0]

    def start():
        empty = jnp.full((queries, 1), -jnp.inf, kind)
        return empty, jnp.zeros((queries, 1), kind), jnp.zeros((queries, value.shape[-1]), kind)

    def step(place, block, carried):
        peak_before, total, values = carried
        scores = _scores(plan, block, block.query, block.key, block.numbers)
        scores = _masked(plan, place, block, scores.astype(kind))
        peak = jnp.maximum(peak_before, jnp.max(scores, axis=-1, keepdims=True))
        base = jnp.where(peak == -jnp.inf, 0, peak)
        weights, decay = jnp.exp(scores - base), jnp.exp(peak_before - base)
        total = total * decay + jnp.sum(weights, axis=-1, keepdims=True)
        kept = _dropped(plan, place, block, weights).astype(block.value.dtype)
        return peak, total, values * decay + _product(kept, block.value, (1, 0))

    def finish(carried):
        peak, total, values = carried
        divisor = jnp.where(total == 0, 1, total)
        return values / divisor, jnp.where(total == 0, -jnp.inf, peak + jnp.log(divisor))

    rows = plan.counts[0] * queries
    shapes = ((*plan.batch, rows, value.shape[-1]), value.dtype), ((*plan.batch, rows, 1), kind)
    return run(plan, Walk("keys", start, step, finish, ("query", "query"), _structs(shapes)), inputs)


def of_queries(plan: Plan, inputs: Inputs) -> tuple[Float[Array, "*batch q d"], Float[Array, "*batch b 1 n"]]:
    """The gradient of the queries, and what each block of queries adds to that of the bias's numbers."""
    kind, size = accumulator(inputs), inputs.query.shape[-1]
    count = 0 if inputs.numbers is None else inputs.numbers.shape[-1]

    def start():
        return jnp.zeros((plan.blocks[0], size), kind), jnp.zeros((1, max(count, 1)), kind)

    def step(place, block, carried):
        read = functools.partial(_scores, plan, block)
        scores, pull = jax.vjp(lambda query, numbers: read(query, block.key, numbers), block.query, block.numbers)
        of_query, of_numbers = pull(_gradients(plan, place, block, scores)[1])
        return carried[0] + of_query, carried[1] + _vector(of_numbers, carried[1])

    shapes = (
        ((*plan.batch, plan.counts[0] * plan.blocks[0], size), kind),
        ((*plan.batch, plan.counts[0], 1, max(count, 1)), kind),
    )
    walk = Walk("keys", start, step, lambda carried: carried, ("query", "of_queries"), _structs(shapes))
    return run(plan, walk, inputs)


def of_keys(plan: Plan, inputs: Inputs) -> tuple[Float[Array, "*batch k d"], Float[Array, "*batch k v"]]:
    """The gradients of the keys and of the values."""
    kind = accumulator(inputs)
    sizes = inputs.key.shape[-1], inputs.value.shape[-1]

    def start():
        return tuple(jnp.zeros((plan.blocks[1], size), kind) for size in sizes)

    def step(place, block, carried):
        scores, pull = jax.vjp(lambda key: _scores(plan, block, block.query, key, block.numbers), block.key)
        kept, of_scores = _gradients(plan, place, block, scores)
        return carried[0] + pull(of_scores)[0], carried[1] + _product(kept, block.gradient, (0, 0))

    shapes = (((*plan.batch, plan.counts[1] * plan.blocks[1], size), kind) for size in sizes)
    walk = Walk("queries", start, step, lambda carried: carried, ("key", "key"), _structs(shapes))
    return run(plan, walk, inputs)


def accumulator(inputs: Inputs):
    """The dtype of sums: float32 or more."""
    return jnp.promote_types(jnp.result_type(inputs.query, inputs.key, inputs.value), jnp.float32)


def _scores(plan: Plan, block: Inputs, query: Array, key: Array, numbers: Sequence[Array] | None) -> Array:
    """The scores of a block, before its mask."""
    scores = plan.score(query, key)
    if plan.bias is not None:
        scores = scores + plan.bias(numbers or (), *block.positions)
    return plan.bend(scores)


def _masked(plan: Plan, place: Place, block: Inputs, scores: Array) -> Array:
    """The scores, −∞ where the rules forbid; a full block asks no rule."""
    if not plan.rules:
        return scores

    def partly(scores):
        given = zip(plan.rules, block.masks, strict=True)
        found = (allows(*_indices(plan, place), *arrays) for (allows, _), arrays in given)
        return jnp.where(functools.reduce(lambda one, other: one & other, found), scores, -jnp.inf)

    return jax.lax.cond(place.is_full, lambda scores: scores, partly, scores)


def _gradients(plan: Plan, place: Place, block: Inputs, scores: Array) -> tuple[Array, Array]:
    """The weights after dropout, and the gradient of the scores."""
    weights = jnp.exp(_masked(plan, place, block, scores) - block.rows[:, :1])
    of_weights = _dropped(plan, place, block, _product(block.gradient, block.value, (1, 1)))
    return _dropped(plan, place, block, weights), weights * (of_weights - block.rows[:, 1:])


def _dropped(plan: Plan, place: Place, block: Inputs, weights: Array) -> Array:
    """The weights times dropout's factors, from the indices of queries and keys."""
    if block.drops is None:
        return weights
    query_index, key_index = (index.astype(jnp.uint32) for index in _indices(plan, place))
    bits = joined(joined(block.drops.bits, query_index + block.drops.first), key_index)
    return jnp.where(is_kept(bits, block.drops.threshold), weights * block.drops.gain, 0)


def _indices(plan: Plan, place: Place) -> tuple[Int[Array, "q 1"], Int[Array, "1 k"]]:
    queries, keys = plan.blocks
    return (
        place.queries * queries + jax.lax.broadcasted_iota(jnp.int32, (queries, 1), 0),
        place.keys * keys + jax.lax.broadcasted_iota(jnp.int32, (1, keys), 1),
    )


def _product(a: Array, b: Array, contracted: tuple[int, int]) -> Array:
    kind = jnp.promote_types(b.dtype, jnp.float32)
    dimensions = (((contracted[0],), (contracted[1],)), ((), ()))
    return jax.lax.dot_general(a, b, dimensions, preferred_element_type=kind)


def _vector(numbers: Sequence[Array] | None, like: Float[Array, "1 n"]) -> Float[Array, "1 n"]:
    """Scalars as one vector, which kernels cannot stack."""
    index = jax.lax.broadcasted_iota(jnp.int32, like.shape, 1)
    each = (jnp.where(index == at, number, 0) for at, number in enumerate(numbers or ()))
    return sum(each, jnp.zeros_like(like))


def _structs(shapes) -> tuple[jax.ShapeDtypeStruct, ...]:
    return tuple(jax.ShapeDtypeStruct(*of_one) for of_one in shapes)


# --- how the blocks are walked ----------------------------------------------------------------------------------------


def run(plan: Plan, walk: Walk, inputs: Inputs) -> tuple[Array, ...]:
    """The outputs of a walk: compiled for the device that it is lowered for; interpreted on a CPU."""
    compiled, interpreted = (functools.partial(_on_grid, plan, walk, is_interpreted=is_so) for is_so in (False, True))
    return jax.lax.platform_dependent(inputs, cpu=interpreted, default=compiled)


def _on_grid(plan: Plan, walk: Walk, inputs: Inputs, is_interpreted: bool) -> tuple[Array, ...]:
    """The last axis of the grid is the one that is reduced over: a core takes it in order, and holds what is carried."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    axis = len(plan.batch)
    counts = plan.counts if walk.over == "keys" else plan.counts[::-1]

    def kernel(references, *written):
        outputs, carried = written[: len(walk.shapes)], written[len(walk.shapes) :]
        one, other = pl.program_id(axis), pl.program_id(axis + 1)
        queries, keys = (one, other) if walk.over == "keys" else (other, one)
        kind = references.kinds[queries, keys]

        @pl.when(other == 0)
        def _():
            _write(carried, walk.start())

        @pl.when(kind != EMPTY)
        def _():
            block = _loaded(plan, references)
            held = tuple(reference[...] for reference in carried)
            _write(carried, walk.step(Place(queries, keys, kind == FULL), block, held))

        @pl.when(other == counts[1] - 1)
        def _():
            _write(outputs, walk.finish(tuple(reference[...] for reference in carried)))

    spec = functools.partial(_spec, plan, walk.over)
    in_order = ("parallel",) * (axis + 1) + ("arbitrary",)
    return pl.pallas_call(
        kernel,
        walk.shapes,
        grid=(*plan.batch, *counts),
        in_specs=[jax.tree.map(spec, roles_of(plan, inputs), inputs)],
        out_specs=tuple(map(spec, walk.roles, walk.shapes)),
        scratch_shapes=[pltpu.VMEM(array.shape, array.dtype) for array in jax.eval_shape(walk.start)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=in_order),
        interpret=is_interpreted,
    )(inputs)


def _loaded(plan: Plan, references: Inputs) -> Inputs:
    """The blocks of arrays, and small ones number by number. Gradients are computed in float32."""
    roles = roles_of(plan, references)
    block = jax.tree.map(lambda role, reference: reference if role == SMALL else reference[...], roles, references)
    one = lambda reference: reference[0, 0]  # noqa: E731
    masks = (
        tuple(one(array) if of == "text" else array for of, array in zip(reads, arrays, strict=True))
        for (_, reads), arrays in zip(plan.rules, block.masks, strict=True)
    )
    if block.numbers is not None:
        block = block._replace(numbers=tuple(block.numbers[0, at] for at in range(block.numbers.shape[-1])))
    block = block._replace(masks=tuple(masks), drops=block.drops and Drops(*map(one, block.drops)))
    if block.gradient is None:
        return block
    kind = accumulator(block)
    return block._replace(**{name: getattr(block, name).astype(kind) for name in ("query", "key", "value", "gradient")})


def _write(references, arrays) -> None:
    for reference, array in zip(references, arrays, strict=True):
        reference[...] = array.astype(reference.dtype)


def _spec(plan: Plan, over: str, role: str, array: Any):
    """How an array of a role is cut into blocks, and which of them an instance of the kernel gets."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    (queries, keys), (rows, columns), axes = plan.blocks, array.shape[-2:], len(plan.batch)
    block, at = {
        "query": ((queries, columns), lambda i, j: (i, 0)),
        "key": ((keys, columns), lambda i, j: (j, 0)),
        "key_row": ((1, keys), lambda i, j: (0, j)),
        "pair": ((queries, keys), lambda i, j: (i, j)),
        "of_queries": ((None, 1, columns), lambda i, j: (i, 0, 0)),
        SMALL: ((rows, columns), lambda i, j: (0, 0)),
    }[role]

    def index(*ids):
        own = (place if size > 1 else 0 for place, size in zip(ids[:axes], array.shape[:axes], strict=True))
        return *own, *at(*(ids[axes:] if over == "keys" else ids[: axes - 1 : -1]))

    return pl.BlockSpec((None,) * axes + block, index, memory_space=pltpu.SMEM if role == SMALL else None)
