"""Position encodings: records of pure functions over explicit positions `[..., T]`.

Five ways in which positions enter attention, each a field of `Encoding` that is None where an encoding has no such
part: added to the embeddings, turning queries and keys, a bias on the scores, a term beside the values, and positions
drawn at random. Positions are an argument and never an array's index, so that packed segments, left padding and cached
decoding need nothing of their own.
"""

import ast
import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from attention_jax.ops.shapes import align_ranks

Positions = Int[Array, "*#batch t"]
EVERYWHERE = ("encoder", "decoder")  # self-attention; the indices of two texts have no distance, so never "cross"


class Spec(NamedTuple):
    """What an encoding's parameters depend on; `is_causal` where keys come before their query."""

    width: int
    heads: int
    head_size: int
    max_length: int
    is_causal: bool


@dataclasses.dataclass(frozen=True)
class Encoding:
    """A position encoding. Bias and mix have heads at axis −3, which queries and weights have too.

    `max_length(spec)` is the longest text that it can place, None where there is no bound.
    """

    init: Callable[[Key[Array, ""], Spec], Any] = lambda key, spec: {}
    add: Callable[[Any, Array, Array], Array] | None = None  # (params, x, positions) → x
    rotate: Callable[[Any, Array, Array], Array] | None = None  # (params, x, positions) → x
    bias: Callable[[Any, Array, Array, Array], Array] | None = None  # (params, query, q_positions, k_positions)
    mix: Callable[[Any, Array, Array, Array], Array] | None = None  # (params, weights, q_positions, k_positions)
    sample_positions: Callable[[Key[Array, ""], int], Array] | None = None  # (key, length) → rising positions
    sites: tuple[str, ...] = EVERYWHERE
    is_shared: bool = True  # whether layers share the parameters
    max_length: Callable[[Spec], int | None] = lambda spec: None
    even: str = ""  # "width" or "head_size", where that must be even


# --- added to the embeddings ------------------------------------------------------------------------------------------


def sinusoidal(positions: Float[Array, "..."] | Int[Array, "..."], width: int) -> Float[Array, "... width"]:
    """P[i, 2j] = sin(i / 10000^(2j / width)), P[i, 2j + 1] = cos(same) (Vaswani et al. 2017, §3.5).

    Raises ValueError for an odd width.
    """
    angle = _angles(positions, frequencies(width))
    return jnp.stack([jnp.sin(angle), jnp.cos(angle)], axis=-1).reshape(*positions.shape, width)


def sinusoidal_table(length: int, width: int) -> Float[Array, "length width"]:
    """The sinusoids of positions 0 … length − 1."""
    return sinusoidal(jnp.arange(length), width)


def frequencies(width: int, base: float = 10000.0) -> Float[Array, " half"]:
    """base^(−2j / width) radians a position, j = 0 … width / 2 − 1. Raises ValueError for an odd width."""
    if width % 2:
        raise ValueError(f"width={width}: sines and cosines come in pairs, so that it must be even.")
    return base ** (-jnp.arange(0, width, 2, dtype=jnp.float32) / width)


def binary(positions: Int[Array, "..."], width: int) -> Float[Array, "... width"]:
    """Feature j is binary digit j of the position, the lowest first; what a sinusoid makes smooth."""
    places = jnp.arange(width)
    digits = jnp.right_shift(*align_ranks(positions[..., None], jnp.minimum(places, 30))) & 1
    return jnp.multiply(*align_ranks(digits, (places < 31).astype(digits.dtype))).astype(jnp.float32)


def _added(table: Callable[[Array, int], Array]) -> Callable[[Any, Array, Array], Array]:
    def add(params, x, positions):
        del params
        return jnp.add(*align_ranks(x, table(positions, x.shape[-1]).astype(x.dtype)))

    return add


def _init_learned(key: Key[Array, ""], spec: Spec) -> dict[str, Array]:
    return {"table": 0.02 * jax.random.normal(key, (spec.max_length, spec.width))}


def _add_learned(params: Any, x: Array, positions: Array) -> Array:
    table = params["table"]
    if positions.shape[-1] > len(table):
        raise ValueError(f"learned positions: {positions.shape[-1]} of them, and the table has {len(table)}.")
    found = jnp.take(table, positions, axis=0, mode="fill", fill_value=jnp.nan)  # past the table: never silently wrong
    return jnp.add(*align_ranks(x, found.astype(x.dtype)))


# --- queries and keys turned ------------------------------------------------------------------------------------------


def rotate(
    x: Float[Array, "*batch t f"],
    positions: Float[Array, "*#batch t"] | Positions,
    *,
    base: float = 10000.0,
    fraction: float = 1.0,
    scaling: str = "none",
    factor: float = 1.0,
    trained_length: int = 2048,
) -> Float[Array, "*batch t f"]:
    """Each pair of features (2j, 2j + 1) turned by position · base^(−2j / f) (Su et al. 2021, eq. 34).

    Scores of turned queries and keys depend on i − j alone. `fraction` of the features is turned, the rest stay.
    `scaling` makes room for texts `factor` times `trained_length`: "interpolation" divides positions (Chen et al.
    2023, eq. 4), "ntk" raises the base to base · factor^(f / (f − 2)), and "yarn" interpolates slow pairs alone,
    with scores raised by (0.1 ln factor + 1)² (Peng et al. 2023, §3.2–3.4). Raises ValueError for an odd number of
    features, or another scaling.
    """
    turned = round(fraction * x.shape[-1])
    if turned % 2 or not 0 < turned <= x.shape[-1]:
        raise ValueError(f"rotary: {turned} of {x.shape[-1]} features: they turn in pairs, so that it must be even.")
    if scaling not in SCALINGS:
        raise ValueError(f"scaling={scaling!r}: choose one of {', '.join(SCALINGS)}.")
    speeds, gain = SCALINGS[scaling](turned, base, factor, trained_length)
    angle = _angles(positions, speeds)
    x_pairs = x[..., :turned].astype(jnp.float32).reshape(*x.shape[:-1], -1, 2)
    cos, sin, even, odd = align_ranks(jnp.cos(angle), jnp.sin(angle), x_pairs[..., 0], x_pairs[..., 1])
    pairs = gain * jnp.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1)
    return jnp.concatenate([pairs.reshape(*pairs.shape[:-2], turned).astype(x.dtype), x[..., turned:]], axis=-1)


def _yarn(turned: int, base: float, factor: float, trained_length: int) -> tuple[Array, float]:
    speeds = frequencies(turned, base)
    turns = trained_length * speeds / (2 * math.pi)  # over the trained length
    kept = jnp.clip((turns - 1) / (32 - 1), 0, 1)  # α = 1 and β = 32, the paper's
    return (1 - kept) * speeds / factor + kept * speeds, 0.1 * math.log(factor) + 1


# scaling → (features turned, base, factor, trained length) → speed of each pair, and what queries and keys are times
SCALINGS: dict[str, Callable[[int, float, float, int], tuple[Array, float]]] = {
    "none": lambda turned, base, factor, length: (frequencies(turned, base), 1.0),
    "interpolation": lambda turned, base, factor, length: (frequencies(turned, base) / factor, 1.0),
    "ntk": lambda turned, base, factor, length: (
        frequencies(turned, base * factor ** (turned / max(turned - 2, 1))),
        1.0,
    ),
    "yarn": _yarn,
}


# --- a bias on the scores ---------------------------------------------------------------------------------------------


def alibi_slopes(num_heads: int) -> Float[Array, " heads"]:
    """2^(−8h / n) for heads h = 1 … n where n is a power of two (Press et al. 2022, §3).

    Else those of the power of two below, and every other one of the power of two above (their code's rule).
    """
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2 ** (-8 * head / power) for head in range(1, power + 1)]
    between = [2 ** (-8 * head / (2 * power)) for head in range(1, 2 * power + 1, 2)]
    return jnp.array((slopes + between)[:num_heads])


def t5_bucket(
    relative_position: Int[Array, "..."], *, bidirectional: bool, num_buckets: int = 32, max_distance: int = 128
) -> Int[Array, "..."]:
    """The bucket of key − query (Raffel et al. 2020, §2.1): exact up close, then by logarithm up to `max_distance`.

    With e exact buckets of n on a side, distance d ≥ e is in e + ⌊ln(d / e) / ln(max_distance / e) · (n − e)⌋, at
    most n − 1. Bidirectional: half of the buckets for keys behind, half for keys ahead. Else keys ahead are at 0.
    """
    buckets, side = num_buckets, jnp.zeros_like(relative_position)
    if bidirectional:
        buckets //= 2
        side = jnp.where(relative_position > 0, buckets, 0)
        distance = jnp.abs(relative_position)
    else:
        distance = jnp.maximum(-relative_position, 0)
    exact = buckets // 2
    ratio = jnp.log(jnp.maximum(distance, 1).astype(jnp.float32) / exact) / math.log(max_distance / exact)
    far = jnp.minimum(exact + jnp.floor(ratio * (buckets - exact) + 1e-6).astype(jnp.int32), buckets - 1)
    return side + jnp.where(distance < exact, distance, far)


def _relative(query_positions: Array, key_positions: Array) -> Array:
    """j − i, `[..., Q, K]`."""
    return jnp.subtract(*align_ranks(key_positions[..., None, :], query_positions[..., :, None]))


def _distance(query_positions: Array, key_positions: Array) -> Array:
    """|j − i| as heads see it, `[..., 1, Q, K]`."""
    return jnp.abs(_relative(query_positions, key_positions)).astype(jnp.float32)[..., None, :, :]


def _alibi(params: Any, query: Array, query_positions: Array, key_positions: Array) -> Array:
    """−m_h |i − j|."""
    del params
    slopes = alibi_slopes(query.shape[-3])[:, None, None]
    return -jnp.multiply(*align_ranks(slopes, _distance(query_positions, key_positions)))


def _t5(bidirectional: bool | None, num_buckets: int, max_distance: int) -> Encoding:
    """The direction is the spec's where it is None: a table tells by its name which way it was made for."""

    def init(key, spec):
        both = not spec.is_causal if bidirectional is None else bidirectional
        name = "both_ways" if both else "causal"
        return {name: 0.02 * jax.random.normal(key, (num_buckets, spec.heads))}

    def bias(params, query, query_positions, key_positions):
        del query
        ((name, table),) = params.items()
        asked = {"bidirectional": name == "both_ways", "num_buckets": num_buckets, "max_distance": max_distance}
        found = table[t5_bucket(_relative(query_positions, key_positions), **asked)]
        return jnp.moveaxis(found, -1, -3)

    return Encoding(init=init, bias=bias)


def _shaw(clip: int) -> Encoding:
    """Shaw et al. 2018, eq. 3–4: a vector for each distance up to `clip`, beside the keys and beside the values."""

    def init(key, spec):
        names = ("keys", "values")
        shape = (2 * clip + 1, spec.head_size)
        return {n: 0.02 * jax.random.normal(k, shape) for n, k in zip(names, jax.random.split(key), strict=True)}

    def places(query_positions, key_positions):
        return jnp.clip(_relative(query_positions, key_positions), -clip, clip) + clip

    def bias(params, query, query_positions, key_positions):
        scores_Qx2k = query @ params["keys"].T.astype(query.dtype) / math.sqrt(query.shape[-1])
        index = places(query_positions, key_positions)[..., None, :, :]
        shape = jnp.broadcast_shapes(scores_Qx2k.shape[:-1], index.shape[:-1])
        scores_Qx2k = jnp.broadcast_to(scores_Qx2k, (*shape, scores_Qx2k.shape[-1]))
        return jnp.take_along_axis(scores_Qx2k, jnp.broadcast_to(index, (*shape, index.shape[-1])), axis=-1)

    def mix(params, weights, query_positions, key_positions):
        index = places(query_positions, key_positions)[..., None, :, :]
        mass = jax.nn.one_hot(index, 2 * clip + 1, dtype=weights.dtype)
        mass_Qx2k = jnp.einsum("...qk,...qkp->...qp", weights, mass)
        return mass_Qx2k @ params["values"].astype(weights.dtype)

    return Encoding(init=init, bias=bias, mix=mix, is_shared=False)


def _fire(hidden: int) -> Encoding:
    """Li et al. 2024, eq. 4: f(ψ(i − j) / ψ(max(L, i))) with ψ(x) = ln(c x + 1), and c, L and the network f learned."""

    def init(key, spec):
        first, second = jax.random.split(key)
        return {
            "hidden": jax.random.normal(first, (hidden,)),
            "hidden_bias": jnp.zeros(hidden),
            "out": jax.random.normal(second, (hidden, spec.heads)) / math.sqrt(hidden),
            "c": jnp.array(0.1),
            "threshold": jnp.array(float(spec.max_length)),
        }

    def bias(params, query, query_positions, key_positions):
        del query
        psi = lambda x: jnp.log(jnp.abs(params["c"] * x) + 1)  # noqa: E731
        distance = jnp.maximum(-_relative(query_positions, key_positions), 0).astype(jnp.float32)
        scale = jnp.maximum(jnp.abs(params["threshold"]), query_positions.astype(jnp.float32))[..., :, None]
        ratio = jnp.divide(*align_ranks(psi(distance), jnp.maximum(psi(scale), 1e-6)))
        inner = jnp.einsum("...qk,h->...qkh", ratio, params["hidden"])
        features = jax.nn.relu(jnp.add(*align_ranks(inner, params["hidden_bias"])))
        return jnp.moveaxis(features @ params["out"], -1, -3)

    return Encoding(init=init, bias=bias, sites=("decoder",), is_shared=False)


def _kerple(form: str) -> Encoding:
    """Chi et al. 2022, §3.3: −r₁ ln(1 + r₂ |i − j|), or −r₁ |i − j|^r₂ with r₂ ≤ 2; r₁, r₂ > 0 of each head."""

    def init(key, spec):
        one, other = jax.random.split(key)
        draw = lambda key, top: jax.random.uniform(key, (spec.heads,), minval=0.1, maxval=top)  # noqa: E731
        return {"r1": draw(one, 2.0), "r2": draw(other, 1.0)}

    def bias(params, query, query_positions, key_positions):
        del query
        r1, r2 = (jnp.maximum(params[name], 1e-2)[:, None, None] for name in ("r1", "r2"))
        distance = _distance(query_positions, key_positions)
        r1, r2, distance = align_ranks(r1, r2, distance)
        if form == "log":
            return -r1 * jnp.log1p(r2 * distance)
        is_near = distance == 0  # whose power has no gradient
        return jnp.where(is_near, 0.0, -r1 * jnp.where(is_near, 1.0, distance) ** jnp.minimum(r2, 2.0))

    return Encoding(init=init, bias=bias)


# --- positions drawn at random ----------------------------------------------------------------------------------------


def randomized(encoding: Encoding, longest: int = 2048) -> Encoding:
    """The encoding over positions drawn, in rising order, from 0 … `longest` − 1 (Ruoss et al. 2023, §3).

    A text is then placed as texts up to `longest` would be, though none so long was seen.
    """

    def sample_positions(key, length):
        if length > longest:
            raise ValueError(f"randomized positions: {length} of them, and they are drawn from {longest}.")
        return jnp.sort(jax.lax.top_k(jax.random.bits(key, (longest,)), length)[1])

    return dataclasses.replace(
        encoding,
        init=lambda key, spec: encoding.init(key, spec._replace(max_length=longest)),
        sample_positions=sample_positions,
        max_length=lambda spec: longest,
    )


BUILDERS: dict[str, Callable[..., Encoding]] = {
    "none": lambda: Encoding(),
    "sinusoidal": lambda: Encoding(add=_added(sinusoidal), even="width"),
    "learned": lambda: Encoding(init=_init_learned, add=_add_learned, max_length=lambda spec: spec.max_length),
    "binary": lambda: Encoding(add=_added(binary)),
    "rotary": lambda **options: Encoding(
        rotate=lambda params, x, positions: rotate(x, positions, **options), even="head_size"
    ),
    "alibi": lambda: Encoding(bias=_alibi),
    "t5": lambda bidirectional=None, num_buckets=32, max_distance=128: _t5(bidirectional, num_buckets, max_distance),
    "shaw": lambda clip=16: _shaw(clip),
    "fire": lambda hidden=32: _fire(hidden),
    "kerple_log": lambda: _kerple("log"),
    "kerple_power": lambda: _kerple("power"),
}
RANDOMIZED = "randomized_"


def make_encoding(text: str, **options: Any) -> Encoding:
    """The encoding that a text names, with options: "rotary:scaling=yarn,factor=4", "t5:num_buckets=16", "shaw:clip=8".

    "randomized_NAME" wraps any with positions drawn at random, from `longest`. Options may be arguments too. Raises
    ValueError for another name or option.
    """
    name, _, written = text.partition(":")
    base = name.removeprefix(RANDOMIZED)
    if base not in BUILDERS or (base == "none" and base != name):
        raise ValueError(f"encoding={name!r}: choose one of {', '.join(ENCODINGS)}.")
    options = _options(written) | options
    wrapped = {"longest": options.pop("longest")} if base != name and "longest" in options else {}
    try:
        found = BUILDERS[base](**options)
    except TypeError as error:
        raise ValueError(f"encoding={name!r}: {error}") from None
    return found if base == name else randomized(found, **wrapped)


def _options(written: str) -> dict[str, Any]:
    """From "factor=4,scaling=yarn" to {"factor": 4, "scaling": "yarn"}."""
    pairs = [option.partition("=") for option in written.split(",") if option]
    return {name.strip(): _value(value) for name, _, value in pairs}


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


ENCODINGS: dict[str, Encoding] = {name: build() for name, build in BUILDERS.items()}
ENCODINGS |= {f"{RANDOMIZED}{name}": randomized(encoding) for name, encoding in ENCODINGS.items() if name != "none"}


def require_usable(name: str, encoding: Encoding, site: str, spec: Spec) -> None:
    """Raise ValueError where an encoding is not defined: at a site, or for an odd number of features."""
    if site not in encoding.sites:
        raise ValueError(f"encoding={name!r} is not defined in the {site}, but in: {', '.join(encoding.sites)}.")
    if encoding.even and getattr(spec, encoding.even) % 2:
        raise ValueError(f"encoding={name!r} needs an even {encoding.even}, not {getattr(spec, encoding.even)}.")


def require_room(name: str, encoding: Encoding, spec: Spec, length: int) -> None:
    """Raise ValueError where a text is longer than an encoding can place."""
    longest = encoding.max_length(spec)
    if longest is not None and length > longest:
        raise ValueError(f"encoding={name!r} places up to {longest} words, not {length}: it cannot extrapolate.")


def _angles(positions: Array, speeds: Array) -> Float[Array, "... half"]:
    return jnp.multiply(*align_ranks(positions[..., None].astype(jnp.float32), speeds))
