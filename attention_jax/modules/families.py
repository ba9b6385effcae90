"""The families of attention that a config names: their parameters, and where in a layer their functions act."""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from attention_jax.ops import families as ops
from attention_jax.ops import naming
from attention_jax.ops.attention import Attention, Maps
from attention_jax.ops.naming import whole
from attention_jax.ops.shapes import require_choice

PLAIN = "plain"
ALL_KINDS = ("encoder", "decoder", "cross")
CAUSAL = ("decoder",)  # families whose queries come one after another, and whose keys come before them
Params = Mapping[str, Array]
A_BIAS: Any = jax.ShapeDtypeStruct((1, 1), jnp.float32)


class Sizes(NamedTuple):
    """What the shapes of a layer's parameters depend on; `head_size` is that of a head's values."""

    width: int
    heads: int
    head_size: int


class Parameter(NamedTuple):
    """How a parameter is drawn, `initializer(key, shape, dtype)`, and its shape."""

    initializer: Callable
    shape: tuple[int, ...]


class Family(NamedTuple):
    """A family of attention: functions of its parameters; a part that is None does nothing.

    - `parameters(sizes)`: those of a layer, by name.
    - `kinds`: the kinds of attention that it is defined for.
    - `parts`: into how many a head's query and key are cut, each of which is normalised and turned by itself.
    - `maps`: what it does to whole maps; its functions get the parameters.
    - `log_forgets(params, x)` [batch, heads, T]: ln of what every head keeps of the tokens before each; their sums are
      added to scores.
    - `selections(scores, allowed)`: what head 0's scores take from those that later queries give the same keys.
    - `attending(attend, params, depth)`: another way to attend, by means of any backend's; `depth` is the layer's
      number.
    - `outputs(params, x, outputs, depth)`: the heads' outputs, from those that were pooled and the layer's input.
    - `is_signed`: its weights may be below 0.
    """

    parameters: Callable[[Sizes], dict[str, Parameter]] = lambda sizes: {}
    kinds: tuple[str, ...] = ALL_KINDS
    parts: int = 1
    maps: Maps = Maps()
    log_forgets: Callable[[Params, Array], Array] | None = None
    selections: Callable[[Array, Array], Array] | None = None
    attending: Callable[[ops.Attend, Params, Array | int], ops.Attend] = lambda attend, params, depth: attend
    outputs: Callable[[Params, Array, Array, Array | int], Array] = lambda params, x, outputs, depth: outputs
    is_signed: bool = False

    def asked(self, attention: Attention) -> Attention:
        """What is asked of a backend, with stand-ins for what only a layer's arrays give."""
        relative = attention.relative
        if self.log_forgets is not None:
            relative = relative._replace(bias=relative.bias or ops.decay, pairs=None)
        bias = A_BIAS if self.selections is not None else attention.bias
        return attention._replace(maps=self.maps, relative=relative, bias=bias)


GLOROT, ONES, ZEROS = jax.nn.initializers.glorot_uniform(), jax.nn.initializers.ones, jax.nn.initializers.zeros


def _identity(key: Array, shape: tuple[int, ...], dtype=jnp.float32) -> Array:
    return jnp.eye(shape[0], dtype=dtype)


def _talking() -> Family:
    """A layer begins as one whose heads do not talk."""
    names = ("talk_scores", "talk_weights")
    return Family(
        lambda sizes: {name: Parameter(_identity, (sizes.heads, sizes.heads)) for name in names},
        maps=Maps(
            scores=lambda params, scores, query, allowed: ops.talk(scores, params["talk_scores"]),
            weights=lambda params, weights: ops.talk(weights, params["talk_weights"]),
        ),
        is_signed=True,
    )


def _differential() -> Family:
    draw = jax.nn.initializers.normal(0.1)

    def attending(attend, params, depth):
        return ops.differential(attend, ops.differential_lambda(params["lambdas"], depth))

    return Family(
        lambda sizes: {
            "lambdas": Parameter(draw, (4, sizes.head_size // 2)),
            "head_gain": Parameter(ONES, (sizes.head_size,)),
        },
        parts=2,
        attending=attending,
        outputs=lambda params, x, outputs, depth: ops.differential_norm(outputs, params["head_gain"], depth),
        is_signed=True,
    )


def _gated(by: str = "feature") -> Family:
    """A gate for every feature of a head's output, or one for every head."""
    require_choice("by", by, ("feature", "head"))

    def parameters(sizes: Sizes) -> dict[str, Parameter]:
        each = sizes.head_size if by == "feature" else 1
        return {f"gate_by_{by}": Parameter(GLOROT, (sizes.width, sizes.heads * each))}

    return Family(parameters, outputs=lambda params, x, outputs, depth: ops.gated(outputs, x, params[f"gate_by_{by}"]))


def _forgetting() -> Family:
    return Family(
        lambda sizes: {
            "forget": Parameter(GLOROT, (sizes.width, sizes.heads)),
            "forget_bias": Parameter(ZEROS, (sizes.heads,)),
        },
        kinds=CAUSAL,
        log_forgets=lambda params, x: ops.log_forget(x, params["forget"], params["forget_bias"]),
    )


def _contextual(positions: int = 64) -> Family:
    """CoPE: embeddings of so many positions, from 0 on; of keys that are further away by a query's count, the last."""
    count = whole("positions", positions, least=2)
    return Family(
        lambda sizes: {"position_table": Parameter(ZEROS, (count, sizes.head_size))},
        kinds=CAUSAL,
        maps=Maps(
            lambda params, scores, query, allowed: ops.contextual(scores, query, allowed, params["position_table"])
        ),
    )


BUILDERS: dict[str, Callable[..., Family]] = {
    PLAIN: lambda: Family(),
    "talking": _talking,
    "differential": _differential,
    "gated": _gated,
    "forgetting": _forgetting,
    "contextual": _contextual,
    "selective": lambda: Family(kinds=CAUSAL, selections=ops.selections),
}


@functools.cache
def make_family(text: str, key: str = "family", kind: str = "decoder") -> Family:
    """The family that a text names, with options, for a kind of attention: "talking", "gated:by=head".

    Raises ValueError for another name or option, and for a family that is not defined for the kind; `key` is what the
    error calls the text.
    """
    family = naming.build(key, text, BUILDERS)
    if kind not in family.kinds:
        known = [name for name, build in BUILDERS.items() if kind in build().kinds]
        raise ValueError(f"{key}={text!r}: needs queries that come after their keys. Choose one of {', '.join(known)}.")
    return family
