"""What a program costs: FLOPs and depth counted in its jaxpr, loop bodies as often as they run, and memory.

The compiler's own cost analysis counts the body of a loop once. Here a `scan` counts its length times, and a
`shard_map` the devices that it runs on. FLOPs are those of matrix products and triangular systems, 2 a multiply-add;
elementwise work is not counted, nor is how a matrix is factored.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.extend import core


class Cost(NamedTuple):
    """FLOPs of one call, as counted here and by the compiler, and the bytes that the program needs at once."""

    flops: float
    compiled_flops: float  # elementwise work too, and the body of a loop once
    bytes: int


def cost(program: Callable, *arguments: Any) -> Cost:
    """The cost of `program(*arguments)`; arguments may be `jax.ShapeDtypeStruct`s."""
    traced = jax.jit(program).trace(*arguments)
    compiled = traced.lower().compile()
    found: Any = compiled.cost_analysis()
    return Cost(_count(traced.jaxpr.jaxpr), found.get("flops", math.nan), memory(compiled))


def memory(compiled: Any) -> int:
    """The bytes that a compiled program needs at once."""
    found = compiled.memory_analysis()
    used = found.argument_size_in_bytes + found.output_size_in_bytes + found.temp_size_in_bytes
    return used - found.alias_size_in_bytes


def flops(program: Callable, *arguments: Any) -> float:
    """Matrix-product FLOPs of `program(*arguments)`. A `while` of unknown length counts one pass."""
    return _count(jax.make_jaxpr(program)(*arguments).jaxpr)


def depth(program: Callable, *arguments: Any) -> int:
    """The longest chain of operations of `program(*arguments)` of which each needs the one before.

    A matrix product is one operation. A `scan`'s passes come one after another; a `while` of unknown length counts one.
    """
    return _depth(jax.make_jaxpr(program)(*arguments).jaxpr)


def _depth(jaxpr: core.Jaxpr) -> int:
    ready: dict[Any, int] = {}
    for equation in jaxpr.eqns:
        start = max((ready.get(var, 0) for var in equation.invars if not isinstance(var, core.Literal)), default=0)
        own = max((_depth(jaxpr) for jaxpr in inner(equation.params)), default=1)
        own *= equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        ready |= dict.fromkeys(equation.outvars, start + own)
    return max((ready.get(var, 0) for var in jaxpr.outvars if not isinstance(var, core.Literal)), default=0)


def _count(jaxpr: core.Jaxpr) -> float:
    return sum(_count_equation(equation) for equation in jaxpr.eqns)


def _count_equation(equation: core.JaxprEqn) -> float:
    if equation.primitive.name == "dot_general":
        return _dot_general(equation)
    if equation.primitive.name == "triangular_solve":
        return _triangular_solve(equation)
    if equation.primitive.name == "custom_linear_solve":  # beside it stand products with the matrix that do not run
        return _count(equation.params["jaxprs"].solve.jaxpr)
    counts = [_count(jaxpr) for jaxpr in inner(equation.params)]
    return max(counts) if equation.primitive.name == "cond" else sum(counts) * _times(equation)


def _times(equation: Any) -> int:
    """How often what is inside of an equation runs: a `scan`'s body in turn, a `shard_map`'s on every device."""
    params = equation.params
    if equation.primitive.name == "scan":
        return params["length"]
    if equation.primitive.name == "shard_map":
        name = "newly_manual_axes" if "newly_manual_axes" in params else "manual_axes"  # by jax's version
        return math.prod(params["mesh"].shape[axis] for axis in params[name])
    return 1


def _dot_general(equation: Any) -> float:
    (contracted, _), _ = equation.params["dimension_numbers"]
    left = equation.invars[0].aval.shape
    return 2.0 * math.prod(equation.outvars[0].aval.shape) * math.prod(left[axis] for axis in contracted)


def _triangular_solve(equation: Any) -> float:
    """Half of the FLOPs of the matrix times what is solved for."""
    matrix, solved = (var.aval.shape for var in equation.invars)
    return float(matrix[-1] * math.prod(solved))


def inner(params: dict) -> list[core.Jaxpr]:
    """The jaxprs inside of an equation, by its parameters."""
    found = []
    for value in params.values():
        for item in value if isinstance(value, (tuple, list)) else (value,):
            if isinstance(item, core.ClosedJaxpr):
                found.append(item.jaxpr)
            elif isinstance(item, core.Jaxpr):
                found.append(item)
    return found
