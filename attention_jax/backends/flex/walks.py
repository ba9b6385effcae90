"""How blocks of queries and keys are walked: along a grid on a TPU, in a loop on a GPU, interpreted on a CPU.

A walk is a reduction over the blocks of one axis for each block of the other. Its functions get and give blocks as
arrays; where these lie, and who computes them, is decided here, for the device that a program is lowered for.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from attention_jax.backends.record import platform

EMPTY, PARTIAL, FULL = 0, 1, 2  # no pair of a block may attend; some may; all may
EVEN = 3  # all may, and their bias is one number; from here on a kind is EVEN + its index

NARROW = 64  # features of a head up to which a GPU has smaller blocks, and fewer warps for each


class Lengths(NamedTuple):
    """How many there are along the two axes that are cut into blocks."""

    queries: int
    keys: int


def usual_blocks(features: int) -> Lengths:
    """The sizes of blocks where none are asked for; on a GPU those that were fastest on an H100.

    `features` are a query's or a value's, whichever are more.
    """
    if platform() != "gpu":
        return Lengths(128, 128)
    return Lengths(64 if features <= NARROW else 128, 64)


class Plan(NamedTuple):
    """What kernels are made of: functions and lengths, and no array.

    `score(query, key)` is of blocks, and scale · qᵀk where `scale` is no None; `bend(scores)` is what bends them before
    the exponential, and `bias(numbers, query positions, key positions)` is added: `numbers[which(key − query)]` where
    `which` is no None. `rules` are (allows, what each of its arrays is read of). `lengths` are whole blocks; `sizes`
    are those of a block in a walk over keys, `turned` in one over queries.
    """

    score: Callable[[Array, Array], Array]
    bend: Callable[[Array], Array]
    scale: float | None
    bias: Callable[..., Array] | None
    which: Callable[[Array], Array] | None
    rules: tuple[tuple[Callable, tuple[str, ...]], ...]
    batch: tuple[int, ...]
    lengths: Lengths
    sizes: Lengths
    turned: Lengths

    @property
    def counts(self) -> Lengths:
        """How many blocks there are."""
        return Lengths(*(length // size for length, size in zip(self.lengths, self.sizes, strict=True)))


class Drops(NamedTuple):
    """Dropout in a kernel: each text's and head's hashed bits, the first query's index, the threshold and the gain."""

    bits: Any
    first: Any
    threshold: Any
    gain: Any


class Inputs(NamedTuple):
    """What kernels read: arrays whose axes before the last two are the plan's `batch`, or 1; None where there is none.

    Inside a walk's step they are blocks; arrays that have neither queries nor keys are scalars there, `numbers` a tuple
    of them. `gradient` is that of the values. `rows` are two numbers that gradients need of each query: the logarithm
    of the sum of its exponentials, and what the gradients of its scores are less.
    """

    query: Any  # [..., Q, D]
    key: Any  # [..., K, D]
    value: Any  # [..., K, V]
    kinds: Any  # [..., blocks of queries, blocks of keys]
    masks: Any  # of each rule, arrays [..., Q or 1, K or 1]
    numbers: Any = None  # [..., 1, n]
    positions: Any = None  # [..., Q, 1] and [..., 1, K]
    drops: Drops | None = None
    gradient: Any = None  # [..., Q, V]
    rows: Any = None  # [..., Q, 2]


# The role of an array → which of its last two axes are cut into blocks, those of "queries" or of "keys".
CUTS: dict[str, tuple[str | None, str | None]] = {
    "text": (None, None),
    "query": ("queries", None),
    "key": (None, "keys"),
    "pair": ("queries", "keys"),
    "features": ("keys", None),  # of a key
}


def roles_of(plan: Plan, inputs: Inputs) -> Inputs:
    """The role of each array."""
    roles = Inputs("query", "features", "features", "text", tuple(reads for _, reads in plan.rules))
    return roles._replace(
        numbers=None if inputs.numbers is None else "text",
        positions=inputs.positions and ("query", "key"),
        drops=inputs.drops and Drops(*["text"] * 4),
        gradient=None if inputs.gradient is None else "query",
        rows=None if inputs.rows is None else "query",
    )


class Place(NamedTuple):
    """Which block of queries and which of keys, and whether all of its pairs may attend; a bool where that is known.

    `of` is the walk's: the rows of a block of pairs. `number` is which number the bias of all is, if it is one.
    """

    of: str
    queries: Int[Array, ""]
    keys: Int[Array, ""]
    is_full: Any
    number: Any = None


class Walk(NamedTuple):
    """A reduction over the blocks of the axis `over`, for each block of the other axis, `of`.

    `start()` → what is carried, a tuple of matrices; `step(place, inputs, carried)` → the same after one more block;
    `finish(carried)` → what a block of `of` gives, a tuple of matrices.
    """

    of: str
    over: str
    start: Callable[[], tuple[Array, ...]]
    step: Callable[[Place, Inputs, tuple[Array, ...]], tuple[Array, ...]]
    finish: Callable[[tuple[Array, ...]], tuple[Array, ...]]


def run(plan: Plan, walk: Walk, inputs: Inputs) -> tuple[Array, ...]:
    """What the blocks give: arrays `[*batch, blocks, rows, columns]`. Blocks that are empty are not computed with."""
    ways = {way: functools.partial(way, plan, walk) for way in WAYS.values()}
    with jax.named_scope(_name(walk)):
        return jax.lax.platform_dependent(inputs, **{platform: ways[way] for platform, way in WAYS.items()})


def _name(walk: Walk) -> str:
    """What programs call a kernel."""
    return f"flex_{walk.of}"


def _on_grid(plan: Plan, walk: Walk, inputs: Inputs, is_interpreted: bool = False) -> tuple[Array, ...]:
    """The last axis of the grid is walked in order by one core, whose memory holds what is carried."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import tpu as pltpu

    order, steps = (walk.of, walk.over), getattr(plan.counts, walk.over)
    carry, given = _matrices(walk)

    def kernel(references, *written):
        outputs, carried = written[: len(given)], written[len(given) :]
        at = {axis: pl.program_id(len(plan.batch) + number) for number, axis in enumerate(order)}
        kind = references.kinds[at["queries"], at["keys"]]

        @pl.when(at[walk.over] == 0)
        def _():
            _write(carried, walk.start())

        @pl.when(kind != EMPTY)
        def _():
            block = _loaded(plan, references, lambda role, reference, columns: reference[:, columns])
            _write(carried, walk.step(Place(walk.of, **at, is_full=kind >= FULL), block, _held(carried)))

        @pl.when(at[walk.over] == steps - 1)
        def _():
            _write(outputs, walk.finish(_held(carried)))

    in_order = [pltpu.PARALLEL] * (len(plan.batch) + 1) + [pltpu.ARBITRARY]
    return pl.pallas_call(
        kernel,
        _out_shapes(plan, walk),
        grid=(*plan.batch, getattr(plan.counts, walk.of), steps),
        in_specs=[_specs(plan, inputs, order, pltpu.SMEM)],
        out_specs=_out_specs(plan, walk),
        scratch_shapes=[pltpu.VMEM(matrix.shape, matrix.dtype) for matrix in carry],
        compiler_params=pltpu.CompilerParams(dimension_semantics=in_order),
        interpret=is_interpreted,
        name=_name(walk),
    )(inputs)


def _in_loop(plan: Plan, walk: Walk, inputs: Inputs, is_interpreted: bool = False) -> tuple[Array, ...]:
    """Each instance of the kernel walks the axis in a loop; what is carried are the loop's values."""
    from jax.experimental import pallas as pl
    from jax.experimental.pallas import triton

    size = getattr(plan.sizes, walk.over)
    order, ends = _visits(plan, walk, inputs.kinds)

    def kernel(references, order, ends, *outputs):
        one = pl.program_id(len(plan.batch))

        def visit(is_full, index, carried):
            other = order[one, index]
            here = pl.ds(other * size, size)
            at = {walk.of: one, walk.over: other}
            number = references.kinds[at["queries"], at["keys"]] - EVEN if is_full and plan.which else None

            def read(role, reference, columns):
                is_walked = [axis == walk.over for axis in CUTS[role]]
                return reference[here if is_walked[0] else slice(None), here if is_walked[1] else columns]

            place = Place(walk.of, **at, is_full=is_full, number=number)
            return walk.step(place, _loaded(plan, references, read, number), carried)

        whole, last = ends[one, 0], ends[one, 1]
        carried = jax.lax.fori_loop(0, whole, functools.partial(visit, True), walk.start())
        carried = jax.lax.fori_loop(whole, last, functools.partial(visit, False), carried)
        _write(outputs, walk.finish(carried))

    whole = functools.partial(_spec, plan, (walk.of,), None, "text")
    is_narrow = max(inputs.query.shape[-1], inputs.value.shape[-1]) <= NARROW
    return pl.pallas_call(
        kernel,
        _out_shapes(plan, walk),
        grid=(*plan.batch, getattr(plan.counts, walk.of)),
        in_specs=[_specs(plan, inputs, (walk.of,), None), whole(order), whole(ends)],
        out_specs=_out_specs(plan, walk),
        compiler_params=triton.CompilerParams(num_warps=4 if is_narrow else 8, num_stages=2),
        interpret=is_interpreted,
        name=_name(walk),
    )(inputs, order, ends)


def _visits(plan: Plan, walk: Walk, kinds: Array) -> tuple[Int[Array, "*batch n m"], Int[Array, "*batch n 2"]]:
    """For each block of `of` the blocks of `over`, first those that are quick, and where these and the others end.

    Quick are full blocks and, where the bias says which number it is, of these the even ones.
    """
    kinds = kinds if walk.of == "queries" else jnp.swapaxes(kinds, -1, -2)
    is_quick, is_read = kinds >= (EVEN if plan.which else FULL), kinds != EMPTY
    order = jnp.argsort(2 - is_quick.astype(jnp.int32) - is_read, axis=-1, stable=True).astype(jnp.int32)
    return order, jnp.stack([jnp.sum(each, axis=-1, dtype=jnp.int32) for each in (is_quick, is_read)], axis=-1)


def _interpreted(plan: Plan, walk: Walk, inputs: Inputs) -> tuple[Array, ...]:
    return _on_grid(plan, walk, inputs, is_interpreted=True)


WAYS: dict[str, Callable[[Plan, Walk, Inputs], tuple[Array, ...]]] = {
    "cpu": _interpreted,
    "tpu": _on_grid,
    "cuda": _in_loop,
}


def _loaded(
    plan: Plan, references: Inputs, read: Callable[[str, Any, Any], Array], number: Array | None = None
) -> Inputs:
    """The blocks of a step, read by `read(role, reference, columns)`; of the numbers only the one of this index."""
    roles = roles_of(plan, references)
    plain, of_plain = (record._replace(kinds=None, numbers=None, rows=None) for record in (references, roles))
    block = jax.tree.map(
        lambda role, reference: reference[0, 0] if role == "text" else read(role, reference, slice(None)),
        of_plain,
        plain,
    )
    if references.numbers is not None:
        which = range(references.numbers.shape[-1]) if number is None else (number,)
        block = block._replace(numbers=tuple(references.numbers[0, n] for n in which))
    if references.rows is not None:
        block = block._replace(rows=tuple(read(roles.rows, references.rows, slice(n, n + 1)) for n in range(2)))
    return block


def _held(references) -> tuple[Array, ...]:
    return tuple(reference[...] for reference in references)


def _write(references, arrays) -> None:
    for reference, array in zip(references, arrays, strict=True):
        reference[...] = array.astype(reference.dtype)


def _specs(plan: Plan, inputs: Inputs, order: tuple[str, ...], scalars: Any) -> Inputs:
    """Which block of each array an instance of a kernel gets; `scalars` is the memory of arrays that are not cut."""
    return jax.tree.map(functools.partial(_spec, plan, order, scalars), roles_of(plan, inputs), inputs)


def _spec(plan: Plan, order: tuple[str, ...], scalars: Any, role: str, array: Array) -> Any:
    from jax.experimental import pallas as pl

    axes = len(plan.batch)
    cuts = [axis if axis in order else None for axis in CUTS[role]]
    block = [getattr(plan.sizes, axis) if axis else whole for axis, whole in zip(cuts, array.shape[-2:], strict=True)]

    def index(*ids):
        own = (place if size > 1 else 0 for place, size in zip(ids[:axes], array.shape[:axes], strict=True))
        return *own, *(ids[axes + order.index(axis)] if axis else 0 for axis in cuts)

    memory = scalars if role == "text" else None
    return pl.BlockSpec((*[None] * axes, *block), index, memory_space=memory)


def _matrices(walk: Walk) -> tuple:
    """The shapes of what is carried, and of what a block gives."""
    return jax.eval_shape(walk.start), jax.eval_shape(lambda: walk.finish(walk.start()))


def _out_shapes(plan: Plan, walk: Walk) -> tuple[jax.ShapeDtypeStruct, ...]:
    count = getattr(plan.counts, walk.of)
    return tuple(jax.ShapeDtypeStruct((*plan.batch, count, *m.shape), m.dtype) for m in _matrices(walk)[1])


def _out_specs(plan: Plan, walk: Walk) -> tuple:
    """An instance of a kernel writes what its own block gives."""
    from jax.experimental import pallas as pl

    one = len(plan.batch) + 1
    return tuple(pl.BlockSpec((*[None] * one, *m.shape), lambda *ids: (*ids[:one], 0, 0)) for m in _matrices(walk)[1])
