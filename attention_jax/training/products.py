"""Products in the order that a CPU computes fast.

A matrix W of y = x W has the gradient Σ xᵀ g over all rows. XLA's fast products on a CPU are those that are summed over
the left factor's last axis; this sum, over the first axes of both, it computes by a slower way, beside which the fast
ones wait. Here xᵀ is written down first, and the product is one of the fast ones.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core
from jaxtyping import Array


def with_fast_gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which computes the same; on a CPU its matrices' gradients are products that are fast there."""

    @functools.wraps(function)
    def faster(*arguments):
        if jax.default_backend() != "cpu":
            return function(*arguments)
        traced, shapes = jax.make_jaxpr(function, return_shape=True)(*arguments)
        found = core.jaxpr_as_fun(_rewritten(traced))(*jax.tree.leaves(arguments))
        return jax.tree.unflatten(jax.tree.structure(shapes), found)

    return faster


def _rewritten(value: Any) -> Any:
    """A traced function with its gradients rewritten, and those of functions inside, as loops; all else as it is."""
    if isinstance(value, core.Jaxpr):
        return value.replace(eqns=[new for equation in value.eqns for new in _equations(equation)])
    if isinstance(value, core.ClosedJaxpr):
        return value.replace(jaxpr=_rewritten(value.jaxpr))
    return tuple(map(_rewritten, value)) if type(value) is tuple else value  # branches; no record


def _equations(equation: core.JaxprEqn) -> list[core.JaxprEqn]:
    if not _is_gradient(equation):
        return [equation.replace(params={name: _rewritten(value) for name, value in equation.params.items()})]
    operands: list[Any] = [operand.aval for operand in equation.invars]
    shapes = [jax.ShapeDtypeStruct(operand.shape, operand.dtype) for operand in operands]
    traced = jax.make_jaxpr(functools.partial(_gradient, equation.params))(*shapes).jaxpr
    names = dict(zip([*traced.invars, *traced.outvars], [*equation.invars, *equation.outvars], strict=True))
    own = lambda variables: [names.get(variable, variable) for variable in variables]  # noqa: E731
    return [
        new.replace(
            invars=own(new.invars), outvars=own(new.outvars), source_info=equation.source_info, ctx=equation.ctx
        )
        for new in traced.eqns
    ]


def _is_gradient(equation: core.JaxprEqn) -> bool:
    """Whether an equation is Σ xᵀ g over rows: all axes but the batch's, which come first, and the last of both.

    A right factor without that last axis makes it the gradient of a vector, which is no product of matrices.
    """
    if equation.primitive.name != "dot_general":
        return False
    contracted, batch = equation.params["dimension_numbers"]
    factors: list[Any] = [factor.aval for factor in equation.invars]
    shape, first = factors[0].shape, len(batch[0])
    in_front, rows = tuple(range(first)), tuple(range(first, len(shape) - 1))
    is_sum = all(tuple(axes) == rows for axes in contracted) and all(tuple(axes) == in_front for axes in batch)
    return is_sum and len(factors[1].shape) == len(shape) and math.prod(shape[axis] for axis in rows) > 1


def _gradient(params: dict[str, Any], one: Array, other: Array) -> Array:
    """Σ oneᵀ other, as the transpose of otherᵀ one.

    JAX has g first, and turns gᵀ x to lie as W does. The compiler would turn the other product by exchanging its
    factors, which makes it a slow one again; the transpose of xᵀ g it leaves out.
    """
    axes = tuple(params["dimension_numbers"][1][0])
    one_RxD, other_RxF = (factor.reshape(*factor.shape[: len(axes)], -1, factor.shape[-1]) for factor in (one, other))
    other_FxR = jax.lax.optimization_barrier(jnp.swapaxes(other_RxF, -1, -2))
    numbers = (((len(axes) + 1,), (len(axes),)), (axes, axes))
    found_FxD = jax.lax.dot_general_p.bind(other_FxR, one_RxD, **params | {"dimension_numbers": numbers})
    return jnp.swapaxes(found_FxD, -1, -2)
