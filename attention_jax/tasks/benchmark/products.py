"""The time that the matrix products of a program take by themselves: what the rest of it is measured against."""

import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend import core

from attention_jax.tasks.timing import least_seconds
from attention_jax.training.cost import inner

REPEATS = 5


class Product(NamedTuple):
    """[batch, rows, inner] · [batch, inner, columns], in which dtype."""

    batch: int
    rows: int
    inner: int
    columns: int
    dtype: Any


def products(program: Callable, *arguments: Any) -> Counter[Product]:
    """How often each product is taken in `program(*arguments)`: a scan's as often as it runs, a while's once."""
    return Counter(dict(_counted(jax.make_jaxpr(program)(*arguments).jaxpr)))


def seconds_of(counts: Counter[Product]) -> float:
    """Σ over products of the least time that each takes alone, its operands row by row."""
    return sum(times * least_seconds(*_prepared(product), repeats=REPEATS) for product, times in counts.items())


def _counted(jaxpr: core.Jaxpr) -> Iterator[tuple[Product, int]]:
    counts: Counter[Product] = Counter()
    for equation in jaxpr.eqns:
        if equation.primitive.name == "dot_general":
            counts[_product(equation)] += 1
        times = equation.params.get("length", 1) if equation.primitive.name == "scan" else 1
        for jaxpr in inner(equation.params):
            for product, inside in _counted(jaxpr):
                counts[product] += times * inside
    yield from counts.items()


def _product(equation: Any) -> Product:
    (left, right) = (operand.aval for operand in equation.invars)
    (contracted, _), (batch, _) = equation.params["dimension_numbers"]
    sizes = (math.prod(left.shape[axis] for axis in axes) for axes in (batch, contracted))
    shared, summed = sizes
    return Product(shared, left.size // shared // summed, summed, right.size // shared // summed, left.dtype)


@functools.cache
def _prepared(product: Product) -> tuple[Callable, Any, Any]:
    left = jnp.ones((product.batch, product.rows, product.inner), product.dtype)
    right = jnp.ones((product.batch, product.inner, product.columns), product.dtype)
    return jax.jit(jnp.matmul), *((left[0], right[0]) if product.batch == 1 else (left, right))
