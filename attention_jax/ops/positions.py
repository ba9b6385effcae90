"""Position encodings: records of pure functions over explicit positions `[..., T]`.

Five ways in which positions enter attention, each a field of `Encoding` that is None where an encoding has no such
part: added to the embeddings, turning queries and keys, a bias on the scores, a term beside the values, and positions
drawn at random. Positions are an argument and never an array's index, so that packed segments, left padding and cached
decoding need nothing of their own.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from attention_jax.ops.encoding import Encoding, Spec
from attention_jax.ops.naming import built, parse
from attention_jax.ops.relative import alibi, fire, kerple, shaw, t5
from attention_jax.ops.relative import alibi_slopes as alibi_slopes  # with those here, what others may want
from attention_jax.ops.relative import t5_bucket as t5_bucket
from attention_jax.ops.shapes import align_ranks

Positions = Int[Array, "*#batch t"]


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
    is_known = (positions >= 0) & (positions < len(params["table"]))
    found = jnp.where(is_known[..., None], params["table"][positions], jnp.nan)  # off the table: never silently wrong
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
    trained_length: int = 0,
) -> Float[Array, "*batch t f"]:
    """Each pair of features (2j, 2j + 1) turned by position · base^(−2j / f) (Su et al. 2021, eq. 34).

    Scores of turned queries and keys depend on i − j alone. `fraction` of the features is turned, the rest stay.
    `scaling` makes room for texts `factor` times `trained_length`: "interpolation" divides positions (Chen et al.
    2023, eq. 4), "ntk" raises the base to base · factor^(f / (f − 2)). "yarn" and "yarn_index" interpolate slow pairs
    alone, and raise what is turned by 0.1 ln factor + 1: "yarn" is the paper's, by wavelengths (Peng et al. 2023,
    §3.2–3.4), "yarn_index" that of its authors' code and of the common libraries, by the pairs' indices. Raises
    ValueError for an odd number of features, another scaling, or a `factor` or trained length that it does not use.
    """
    turned = round(fraction * x.shape[-1])
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction={fraction}: a share of the features, more than 0 and at most 1.")
    if turned % 2 or not turned:
        raise ValueError(f"rotary: {turned} of {x.shape[-1]} features: they turn in pairs, so that it must be even.")
    if base <= 0:
        raise ValueError(f"base={base}: needs a number more than 0.")
    if scaling not in SCALINGS:
        raise ValueError(f"scaling={scaling!r}: choose one of {', '.join(SCALINGS)}.")
    if factor <= 0 or (scaling == "none" and factor != 1):
        raise ValueError(f"factor={factor}, scaling={scaling!r}: a factor is more than 0, and goes with a scaling.")
    if scaling.startswith("yarn") != (trained_length > 0):
        raise ValueError(f"trained_length={trained_length}, scaling={scaling!r}: yarn alone needs it, and needs it.")
    speeds, gain = SCALINGS[scaling](turned, base, factor, trained_length)
    angle = _angles(positions, speeds)
    x_pairs = x[..., :turned].astype(jnp.float32).reshape(*x.shape[:-1], -1, 2)
    cos, sin, even, odd = align_ranks(jnp.cos(angle), jnp.sin(angle), x_pairs[..., 0], x_pairs[..., 1])
    pairs = gain * jnp.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1)
    return jnp.concatenate([pairs.reshape(*pairs.shape[:-2], turned).astype(x.dtype), x[..., turned:]], axis=-1)


FEW, MANY = 1, 32  # turns over the trained length: yarn interpolates pairs that make fewer, keeps those that make more


def _yarn(turned: int, base: float, factor: float, trained_length: int) -> tuple[Array, float]:
    """Between `FEW` and `MANY` turns, as much is kept as there are turns (Peng et al. 2023, §3.2, α and β)."""
    speeds = frequencies(turned, base)
    turns = trained_length * speeds / (2 * math.pi)
    kept = jnp.clip((turns - FEW) / (MANY - FEW), 0, 1)
    return (1 - kept) * speeds / factor + kept * speeds, 0.1 * math.log(factor) + 1


def _yarn_index(turned: int, base: float, factor: float, trained_length: int) -> tuple[Array, float]:
    """Between the pairs of `MANY` and of `FEW` turns, as much is interpolated as pairs lie behind (Peng et al.'s code).

    Pair j turns L base^(−2j / f) / 2π times; the pairs' indices are rounded outwards.
    """

    if base <= 1 or trained_length < 2 * math.pi:
        raise ValueError(f"base={base}, trained_length={trained_length}: yarn_index needs more than 1, and 7 or more.")

    def pair(turns):
        return turned * math.log(trained_length / (2 * math.pi * turns)) / (2 * math.log(base))

    first, last = max(math.floor(pair(MANY)), 0), min(math.ceil(pair(FEW)), turned - 1)
    width = last - first or 0.001
    interpolated = jnp.clip((jnp.arange(turned // 2) - first) / width, 0, 1)
    speeds = frequencies(turned, base)
    return interpolated * speeds / factor + (1 - interpolated) * speeds, 0.1 * math.log(max(factor, 1)) + 1


# scaling → (features turned, base, factor, trained length) → speed of each pair, and what queries and keys are times
SCALINGS: dict[str, Callable[[int, float, float, int], tuple[Array, float]]] = {
    "none": lambda turned, base, factor, length: (frequencies(turned, base), 1.0),
    "interpolation": lambda turned, base, factor, length: (frequencies(turned, base) / factor, 1.0),
    "ntk": lambda turned, base, factor, length: (
        frequencies(turned, base * factor ** (turned / max(turned - 2, 1))),
        1.0,
    ),
    "yarn": _yarn,
    "yarn_index": _yarn_index,
}


# --- positions drawn at random ----------------------------------------------------------------------------------------


def randomized(encoding: Encoding, longest: int = 2048) -> Encoding:
    """The encoding over positions drawn, in rising order, from 0 … `longest` − 1 (Ruoss et al. 2023, §3).

    A text is then placed as texts up to `longest` would be, though none so long was seen.
    """
    if not isinstance(longest, int) or longest < 1:
        raise ValueError(f"longest={longest!r}: needs a whole number, 1 or more.")

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
    "alibi": lambda: Encoding(bias=alibi),
    "t5": t5,
    "shaw": shaw,
    "fire": fire,
    "kerple_log": functools.partial(kerple, "log"),
    "kerple_power": functools.partial(kerple, "power"),
}
RANDOMIZED = "randomized_"


def make_encoding(text: str, **options: Any) -> Encoding:
    """The encoding that a text names, with options: "rotary:scaling=yarn,factor=4", "t5:num_buckets=16", "shaw:clip=8".

    "randomized_NAME" wraps any with positions drawn at random, from `longest`. Options may be arguments too. Raises
    ValueError for another name or option.
    """
    name, written = parse(text)
    base, options = name.removeprefix(RANDOMIZED), written | options
    if base not in BUILDERS or (base == "none" and base != name):
        raise ValueError(f"encoding={name!r}: choose one of {', '.join(ENCODINGS)}.")
    wrapped = {"longest": options.pop("longest")} if base != name and "longest" in options else {}

    def make():
        found = BUILDERS[base](**options)
        return found if base == name else randomized(found, **wrapped)

    return built("encoding", text, base, make)


ENCODINGS: dict[str, Encoding] = {name: build() for name, build in BUILDERS.items()}
ENCODINGS |= {f"{RANDOMIZED}{name}": randomized(encoding) for name, encoding in ENCODINGS.items() if name != "none"}


def require_usable(name: str, encoding: Encoding, site: str, spec: Spec) -> None:
    """Raise ValueError where an encoding is not defined: at a site, or for an odd number of features."""
    if site not in encoding.sites:
        raise ValueError(f"encoding={name!r} is not defined in the {site}, but in: {', '.join(encoding.sites)}.")
    if encoding.even and getattr(spec, encoding.even) % 2:
        raise ValueError(f"encoding={name!r} needs an even {encoding.even}, not {getattr(spec, encoding.even)}.")
    try:
        jax.eval_shape(lambda: _used(encoding, spec))
    except (TypeError, ValueError) as error:
        raise ValueError(f"encoding={name!r}: {error}") from None


def _used(encoding: Encoding, spec: Spec) -> list[Array]:
    """Every part of an encoding, on a text of one token."""
    params, place = encoding.init(jax.random.key(0), spec), jnp.zeros((1, 1), jnp.int32)
    x, heads = jnp.zeros((1, 1, spec.width)), jnp.zeros((1, spec.heads, 1, spec.head_size))
    parts: dict[Callable | None, tuple[Array, ...]] = {
        encoding.add: (x, place),
        encoding.rotate: (heads, place[:, None]),
        encoding.bias: (heads, place, place),
        encoding.mix: (jnp.ones((1, spec.heads, 1, 1)), place, place),
    }
    return [part(params, *arguments) for part, arguments in parts.items() if part is not None]


def require_room(name: str, encoding: Encoding, spec: Spec, length: int) -> None:
    """Raise ValueError where a text is longer than an encoding can place."""
    longest = encoding.max_length(spec)
    if longest is not None and length > longest:
        raise ValueError(f"encoding={name!r} places up to {longest} words, not {length}: it cannot extrapolate.")


def _angles(positions: Array, speeds: Array) -> Float[Array, "... half"]:
    return jnp.multiply(*align_ranks(positions[..., None].astype(jnp.float32), speeds))
