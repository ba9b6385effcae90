"""Optimizers: a table of optax's transformations, every number of which may be traced; all act in float32.

An optimizer turns clipped gradients into a direction d. What they share is here too: θ ← θ − η_t (d + λ θ), with
clipping by the global norm, a schedule of rates η_t, and weight decay λ that is decoupled and acts on matrices alone.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from attention_jax.ops.schedules import DECAYING as DECAYING  # with the schedules, for who checks a config
from attention_jax.ops.schedules import SCHEDULES
from attention_jax.ops.stacking import STACKS, layer_axes
from attention_jax.training.parametrization import Lines, line_of


class Rule(NamedTuple):
    """Which optimizer and which schedule, and whose rates are others: the static part of an update."""

    optimizer: str  # a key of OPTIMIZERS
    schedule: str  # a key of SCHEDULES
    lines: Lines = ()  # of a parametrization: what multiplies the rates of parameters


class Range(NamedTuple):
    """What a number may be, in words and as a test of it in float32."""

    words: str
    holds: Callable[[float], bool]


AMOUNT = Range("0 or more", lambda value: 0 <= value < math.inf)
POSITIVE = Range("more than 0", lambda value: 0 < value < math.inf)
FRACTION = Range("0 or more and less than 1", lambda value: 0 <= value < 1)


class Number(NamedTuple):
    """A hyperparameter of one optimizer."""

    default: float
    range: Range


class Optimizer(NamedTuple):
    """Gradients → direction, and the numbers of `hyper` that it takes beside those that all share."""

    direction: Callable[[Mapping], optax.GradientTransformation]
    numbers: dict[str, Number]


def by_layer(one: optax.GradientTransformation) -> optax.GradientTransformation:
    """`one`, to which each layer of a stack is what it would be alone: for rules that are not elementwise."""

    def init(params):
        others, stacks = _parts(params)
        return (one.init(others), [jax.vmap(one.init)(stack) for stack in stacks]) if stacks else one.init(params)

    def update(gradients, state, params):
        others, stacks = _parts(params)
        if not stacks:
            return one.update(gradients, state, params)
        own, of_stacks = _parts(gradients)
        direction, after = one.update(own, state[0], others)
        found = [jax.vmap(one.update)(*of_stack) for of_stack in zip(of_stacks, state[1], stacks, strict=True)]
        for of_stack, _ in found:
            direction |= of_stack
        return direction, (after, [held for _, held in found])

    return optax.GradientTransformation(init, update)


def _parts(params: Mapping) -> tuple[dict, list[dict]]:
    """The parameters that are not of a stack, and those of each stack, all with their paths."""
    others = {key: tree for key, tree in params.items() if key not in STACKS}
    return others, [{key: params[key]} for key in STACKS if key in params]


def adam(hyper: Mapping) -> optax.GradientTransformation:
    """Kingma & Ba 2015, alg. 1; with weight decay AdamW (Loshchilov & Hutter 2019, alg. 2).

    optax.scale_by_adam, but that 1 − β₁ is an argument too: a traced float32 1 − .9 is not the constant's .1.
    """
    init = optax.scale_by_adam().init

    def update(gradients, state, params=None):
        del params
        count = optax.safe_increment(state.count)
        mu = jax.tree.map(lambda g, m: hyper["1 - b1"] * g + hyper["b1"] * m, gradients, state.mu)
        nu = optax.tree.update_moment_per_elem_norm(gradients, state.nu, hyper["b2"], 2)
        first = optax.tree.bias_correction(mu, hyper["b1"], count)
        second = optax.tree.bias_correction(nu, hyper["b2"], count)
        direction = jax.tree.map(lambda m, v: m / (jnp.sqrt(v) + hyper["eps"]), first, second)
        return direction, optax.ScaleByAdamState(count, mu, nu)

    return optax.GradientTransformation(init, update)


def sgd(hyper: Mapping) -> optax.GradientTransformation:
    """m ← μ m + g, d = m (Polyak 1964; Sutskever et al. 2013, eq. 1 with the rate outside); μ = 0: plain descent."""
    return optax.trace(hyper["momentum"])


def lion(hyper: Mapping) -> optax.GradientTransformation:
    """d = sign(β₁ m + (1 − β₁) g), then m ← β₂ m + (1 − β₂) g (Chen et al. 2023, alg. 2).

    Its steps are as long as the rate in every coordinate: take a third to a tenth of Adam's rate.
    """
    return optax.scale_by_lion(hyper["b1"], hyper["b2"])


def adafactor(hyper: Mapping) -> optax.GradientTransformation:
    """Shazeer & Stern 2018, alg. 4 and 5, without their momentum: d = u / max(1, RMS(u) / d_max), u = g / √v̂.

    v̂ is a mean of g² + ε₁ with β₂ = 1 − t^(−decay_rate). A matrix keeps its rows' and columns' means alone where two of
    its axes have 128 and more (which is static, and optax's). Steps are absolute; `least_scale` ε₂ > 0 makes them
    relative to the parameter as in §8: times max(ε₂, RMS(θ)).
    """

    def relative(updates, params):
        least = hyper["least_scale"]
        scale = lambda p: jnp.where(least > 0, jnp.maximum(least, jnp.sqrt(jnp.mean(jnp.square(p)))), 1)  # noqa: E731
        return jax.tree.map(lambda u, p: u * scale(p), updates, params)

    steps = (
        optax.scale_by_factored_rms(decay_rate=hyper["decay_rate"], epsilon=hyper["eps"]),
        optax.clip_by_block_rms(hyper["clipping_threshold"]),
        optax.stateless(relative),
    )
    return by_layer(optax.chain(*steps))


# In a parameter's path: a table of rows, vectors side by side, or what a model reads in and puts out by.
NOT_HIDDEN = ("embedding", "encoding", "position_table", "lambdas", "logits", "read_in", "read_out")
VECTORS = ("lambdas",)  # that stand side by side in one array, and are no matrix


def muon(hyper: Mapping) -> optax.GradientTransformation:
    """Jordan et al. 2024, "Muon": of a hidden layer's matrix, Nesterov momentum whose singular values are made about 1.

    Five Newton–Schulz steps with their coefficients, which are static; momentum as optax has it, its averages'
    bias corrected. Everything else (embeddings, encodings, first and last layers, vectors) has Adam. d is scaled to
    `rms` · √max(rows, columns), .2 being Adam's usual root mean square, so that one rate and one weight decay serve
    both (Liu et al. 2025, §2.2). A kernel of more axes is the matrix of its last one against all others.
    """

    def scaled(updates, params):
        del params
        return jax.tree.map(lambda u: u * hyper["rms"] * math.sqrt(max(u.shape[-1], u.size // u.shape[-1])), updates)

    orthogonal = optax.contrib.scale_by_muon(beta=hyper["momentum"], weight_dimension_numbers=_as_matrices)
    parts = {"muon": optax.chain(orthogonal, optax.stateless(scaled)), "adam": adam(hyper)}
    labels = lambda params: jax.tree.map(lambda hidden: "muon" if hidden else "adam", is_hidden(params))  # noqa: E731
    return by_layer(optax.partition(parts, labels))


def is_hidden(params: Any) -> Any:
    """Whether each parameter is a matrix of a hidden layer, by its path and rank.

    The score "location" gives logits of positions: its `w` stands without a `w_v`, unlike that of "concat".
    """
    names = {jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(params)}

    def hidden(path, leaf):
        name = jax.tree_util.keystr(path)
        is_of_places = name.endswith("['w']") and name.replace("['w']", "['w_v']") not in names
        return leaf.ndim > 1 and not is_of_places and not any(word in name for word in NOT_HIDDEN)

    return jax.tree_util.tree_map_with_path(hidden, params)


def _as_matrices(params: Any) -> Any:
    axes = lambda leaf: optax.contrib.MuonDimensionNumbers(tuple(range(leaf.ndim - 1)), leaf.ndim - 1)  # noqa: E731
    return jax.tree.map(axes, params)


_ADAM = {"b1": Number(0.9, FRACTION), "b2": Number(0.999, FRACTION), "eps": Number(1e-8, POSITIVE)}

OPTIMIZERS: dict[str, Optimizer] = {
    "adam": Optimizer(adam, _ADAM),
    "adamw": Optimizer(adam, _ADAM),  # one and the same: weight decay is decoupled for all
    "sgd": Optimizer(sgd, {"momentum": Number(0.9, FRACTION)}),
    "lion": Optimizer(lion, {"b1": Number(0.9, FRACTION), "b2": Number(0.99, FRACTION)}),
    "adafactor": Optimizer(
        adafactor,
        {
            "decay_rate": Number(0.8, POSITIVE),
            "eps": Number(1e-30, POSITIVE),
            "clipping_threshold": Number(1.0, POSITIVE),
            "least_scale": Number(0.0, AMOUNT),
        },
    ),
    "muon": Optimizer(muon, {"momentum": Number(0.95, FRACTION), "rms": Number(0.2, POSITIVE), **_ADAM}),
}


class WithMaster(NamedTuple):
    """An optimizer's moments, and a float32 copy of each parameter that is kept in fewer bits; None for the others.

    A change of less than a 256th of a parameter is lost in bfloat16: it is added to the copy, and the parameter is the
    copy rounded (Micikevicius et al. 2018, §3.1).
    """

    adam: Any  # the moments, whichever optimizer's: their name in checkpoints
    master: Any


def new_moments(params: Any, optimizer: str) -> Any:
    """The optimizer's state before the first step: moments in float32, in `WithMaster` where that is needed."""
    exact, (direction, numbers) = _float32(params), OPTIMIZERS[optimizer]
    unused = {name: number.default for name, number in numbers.items()}  # no state depends on them
    return _with_master(direction(unused).init(exact), exact, params)


def update(
    gradients: Any, moments: Any, params: Any, step: Array, hyper: Mapping, rule: Rule
) -> tuple[Any, Any, dict[str, Float[Array, ""]]]:
    """New parameters, new moments, and the norms of gradient (before clipping) and change, and the rate used.

    θ ← θ − η_t (d(g · min(1, c / ‖g‖)) + λ θ) (Pascanu et al. 2013, alg. 1; Loshchilov & Hutter 2019, alg. 2), d being
    the optimizer's direction, times what a parametrization says. Weight decay λ acts on matrices, not on biases, gains
    and other vectors.
    """
    moments, exact = _exact(moments, params)
    gradients = _float32(gradients)
    norm = optax.tree.norm(gradients)
    scale = jnp.minimum(1, hyper["clip_norm"] / jnp.maximum(norm, 1e-12))
    optimizer = OPTIMIZERS[rule.optimizer].direction(hyper)
    direction, moments = optimizer.update(jax.tree.map(lambda g: g * scale, gradients), moments, exact)
    rate = SCHEDULES[rule.schedule](step, hyper)

    def apply(path, param, change):
        is_matrix = param.ndim - layer_axes(path) > 1 and path[-1].key not in VECTORS
        decay = hyper["weight_decay"] * param if is_matrix else 0
        if line := line_of(path, rule.lines):
            change = line.rate * change
        return (param - rate * (change + decay)).astype(param.dtype)

    new = jax.tree_util.tree_map_with_path(apply, exact, direction)
    rounded = jax.tree.map(lambda one, param: one.astype(param.dtype), new, params)
    change = optax.tree.norm(jax.tree.map(jnp.subtract, new, exact))
    scalars = {"gradient_norm": norm, "update_norm": change, "learning_rate": rate}
    return rounded, _with_master(moments, new, params), scalars


def _exact(moments: Any, params: Any) -> tuple[Any, Any]:
    """The optimizer's moments alone, and the parameters: the master copies of those that have one."""
    if not isinstance(moments, WithMaster):
        return moments, params
    take = lambda held, param: param if held is None else held  # noqa: E731
    return moments.adam, jax.tree.map(take, moments.master, params, is_leaf=lambda leaf: leaf is None)


def _with_master(moments: Any, exact: Any, params: Any) -> Any:
    """The moments, with the exact values of parameters that are kept in fewer bits."""
    master = jax.tree.map(lambda one, param: None if one.dtype == param.dtype else one, exact, params)
    return WithMaster(moments, master) if jax.tree.leaves(master) else moments


def _float32(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32)), tree)
