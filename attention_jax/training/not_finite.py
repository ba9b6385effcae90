"""Where a NaN or an infinity is born: a program taken again, one operation at a time.

Every value that is not finite carries its origin: the first operation that made it out of finite values. A mask's −∞
has none, and what a `where` drops is not followed.
"""

import dataclasses
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

ROOT = Path(__file__).resolve().parent.parent.parent
TRANSFORMED = ("jvp", "transpose", "vmap", "rematted_computation")  # in name stacks, but no modules
LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))


@dataclasses.dataclass(frozen=True)
class Origin:
    """What made a value that is not finite: an operation, its layer and line, and the infinity that it was given."""

    what: str  # NaN, infinity
    operation: str
    layer: str = ""
    line: str = ""
    given: "Origin | None" = None

    def __str__(self) -> str:
        where = f" in {self.layer}" * bool(self.layer) + f" ({self.line})" * bool(self.line)
        return f"{self.operation}{where}" + (f", given an infinity of {self.given}" if self.given else "")


class Traced(NamedTuple):
    """A value, and its origin where it is not finite; None where a constant brought it in."""

    value: Any
    origin: Origin | None = None


def origin_of(function: Callable, *arguments: Any) -> Origin | None:
    """What first made the scalar `function(*arguments)` NaN or infinite, or None where it is finite."""
    closed = jax.make_jaxpr(function)(*arguments)
    leaves = jax.tree_util.tree_leaves_with_path(arguments)
    given = [Traced(leaf, _of_argument(jax.tree_util.keystr(path[1:]), leaf)) for path, leaf in leaves]
    (result,) = _run(closed.jaxpr, closed.consts, given, ())
    return result.origin or Origin(_what(result.value), "a constant") if _what(result.value) else None


def _of_argument(name: str, value: Any) -> Origin | None:
    return Origin(_what(value), f"what the step was given, {name}") if _what(value) else None


def _run(jaxpr: Any, consts: Sequence[Any], arguments: Sequence[Traced], scopes: tuple[str, ...]) -> list[Traced]:
    """The results of a jaxpr. Operations that they do not need are left out."""
    known = dict(zip(jaxpr.constvars, map(Traced, consts), strict=True))
    known |= dict(zip(jaxpr.invars, arguments, strict=True))

    def read(var):
        return Traced(var.val) if isinstance(var, core.Literal) else known[var]

    for equation in _needed(jaxpr):
        inputs = [read(var) for var in equation.invars]
        known |= dict(zip(equation.outvars, _take(equation, inputs, scopes), strict=True))
    return [read(var) for var in jaxpr.outvars]


def _needed(jaxpr: Any) -> list[Any]:
    """The operations that the results depend on, in order."""
    needed = {var for var in jaxpr.outvars if not isinstance(var, core.Literal)}
    kept = []
    for equation in reversed(jaxpr.eqns):
        if needed.intersection(equation.outvars):
            kept.append(equation)
            needed |= {var for var in equation.invars if not isinstance(var, core.Literal)}
    return kept[::-1]


def _take(equation: Any, inputs: Sequence[Traced], scopes: tuple[str, ...]) -> list[Traced]:
    """One operation's results, each with its origin."""
    params = equation.primitive.get_bind_params(equation.params)
    found = equation.primitive.bind(*(traced.value for traced in inputs), **params)
    values = list(found) if equation.primitive.multiple_results else [found]
    kinds = [_what(value) for value in values]
    if not any(kinds):
        return [Traced(value) for value in values]
    before = [traced for traced in inputs if _what(traced.value)]
    broken = next((traced for traced in before if _what(traced.value) == "NaN"), None)
    if broken is not None:  # nothing new
        return [Traced(value, broken.origin if kind else None) for value, kind in zip(values, kinds, strict=True)]
    inside = _inside(equation, inputs, scopes)
    if inside and [_what(traced.value) for traced in inside] == kinds:
        return [Traced(value, traced.origin) for value, traced in zip(values, inside, strict=True)]
    born = [_born(equation, kind, before, scopes) if kind else None for kind in kinds]
    return list(map(Traced, values, born))


def _born(equation: Any, kind: str, given: Sequence[Traced], scopes: tuple[str, ...]) -> Origin | None:
    """The origin of a result whose operation was given no NaN; an infinity that was given keeps its own."""
    infinite = next((traced.origin for traced in given if traced.origin), None)
    if kind == "infinity" and given:
        return infinite
    layer = layer_of((*scopes, str(equation.source_info.name_stack)))
    return Origin(kind, equation.primitive.name, layer, _line(equation), infinite if kind == "NaN" else None)


def _inside(equation: Any, inputs: Sequence[Traced], scopes: tuple[str, ...]) -> list[Traced] | None:
    """The results of an operation with a program inside (a loop, a branch, a call), taken likewise; None for others.

    Those are others too whose program is of references (a kernel) or of one device's part.
    """
    inner, params = (*scopes, str(equation.source_info.name_stack)), equation.params
    match equation.primitive.name:
        case "scan":
            return _scan(equation, inputs, inner)
        case "while":
            return _while(params, inputs, inner)
        case "cond":
            index, *operands = inputs
            return _call(params["branches"][int(index.value)], operands, inner)
        case "pallas_call" | "shard_map":
            return None  # a program of references, and one of a device's part
    program = params.get("jaxpr", params.get("call_jaxpr"))
    return _call(program, inputs, inner) if isinstance(program, (core.Jaxpr, core.ClosedJaxpr)) else None


def _call(program: Any, inputs: Sequence[Traced], scopes: tuple[str, ...]) -> list[Traced]:
    if isinstance(program, core.ClosedJaxpr):
        return _run(program.jaxpr, program.consts, inputs, scopes)
    return _run(program, (), inputs, scopes)


def _while(params: dict, inputs: Sequence[Traced], scopes: tuple[str, ...]) -> list[Traced]:
    split = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    of_test, of_body, carry = inputs[: split[0]], inputs[split[0] : split[1]], list(inputs[split[1] :])
    while _call(params["cond_jaxpr"], [*of_test, *carry], scopes)[0].value:
        carry = _call(params["body_jaxpr"], [*of_body, *carry], scopes)
    return carry


def _scan(equation: Any, inputs: Sequence[Traced], scopes: tuple[str, ...]) -> list[Traced]:
    """A scan's inputs are constants, the carry and columns of rows; its results the carry and columns."""
    params, body = equation.params, equation.params["jaxpr"]
    in_columns = sum(map(_has_one_more_axis, equation.invars, body.in_avals))
    carried = len(body.out_avals) - sum(map(_has_one_more_axis, equation.outvars, body.out_avals))
    first = len(inputs) - in_columns - carried
    consts, carry, columns = inputs[:first], list(inputs[first : first + carried]), inputs[first + carried :]
    rows: list[list[Traced]] = []
    for index in reversed(range(params["length"])) if params["reverse"] else range(params["length"]):
        row = [Traced(traced.value[index], traced.origin) for traced in columns]
        results = _call(body, [*consts, *carry, *row], scopes)
        carry = results[:carried]
        rows.append(results[carried:])
    ordered = rows[::-1] if params["reverse"] else rows
    return [*carry, *(_stacked(of_rows, rows) for of_rows, rows in _columns(ordered, rows))]


def _has_one_more_axis(outside: Any, inside: Any) -> bool:
    return len(outside.aval.shape) > len(inside.shape)


def _columns(ordered: list[list[Traced]], rows: list[list[Traced]]) -> Iterator[tuple[Any, Any]]:
    return zip(zip(*ordered, strict=True), zip(*rows, strict=True), strict=True)


def _stacked(ordered: Sequence[Traced], as_made: Sequence[Traced]) -> Traced:
    origin = next((traced.origin for traced in as_made if traced.origin), None)
    return Traced(jnp.stack([traced.value for traced in ordered]), origin)


def _what(value: Any) -> str:
    """NaN, infinity or "" for a value that is finite, or no number."""
    if not jnp.issubdtype(value.dtype if hasattr(value, "dtype") else np.result_type(value), jnp.inexact):
        return ""
    array = np.asarray(value)
    if np.isfinite(array).all():
        return ""
    return "NaN" if np.isnan(array).any() else "infinity"


def layer_of(scopes: Sequence[str]) -> str:
    """A module's path out of JAX's name stacks: jvp(Model)/Model.encode/layer is Model/encode/layer."""
    path: list[str] = []
    text = "/".join(scopes)
    for part in text.replace("(", "/").replace(")", "").split("/"):
        name = part.rpartition(".")[2]
        if name.isidentifier() and not name.startswith("_") and name not in TRANSFORMED:
            path += [name] if path[-1:] != [name] else []
    return "/".join(path) + ", in its gradient" * ("transpose(" in text)


def _line(equation: Any) -> str:
    """The line of this package, or of the user's code, that made an operation."""
    traceback = equation.source_info.traceback
    for frame in traceback.frames if traceback else ():
        path = Path(frame.file_name)
        if path.is_relative_to(ROOT / "attention_jax"):
            return f"{path.relative_to(ROOT)}:{frame.line_num}"
        if path.is_absolute() and not frame.file_name.startswith(LIBRARIES):
            return f"{path}:{frame.line_num}"
    return ""
