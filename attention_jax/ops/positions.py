"""Position encodings: records of pure functions over explicit positions `[..., T]`.

There are five ways in which positions enter attention, each a field of `Encoding`: a vector is added to the embeddings;
queries and keys are turned; a bias is added to the scores; a term is added to the values; positions are drawn at
random. Positions are always an argument and never an array's index: packed segments, left padding and cached decoding
need nothing of their own for that reason.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from attention_jax.ops.dtypes import floating
from attention_jax.ops.encoding import Encoding, Spec
from attention_jax.ops.naming import built, more_than_0, options_of, parse, reason, whole
from attention_jax.ops.relative import alibi, fire, kerple, shaw, t5
from attention_jax.ops.relative import alibi_slopes as alibi_slopes  # for users, beside the functions here
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
        raise ValueError(f"width={width}: needs an even number, because sines and cosines come in pairs.")
    return base ** (-jnp.arange(0, width, 2, dtype=jnp.float32) / width)


def binary(positions: Int[Array, "..."], width: int) -> Float[Array, "... width"]:
    """Feature j is binary digit j of the position, the lowest first; a sinusoid is its smooth counterpart."""
    digit = jnp.arange(width)
    digits = jnp.right_shift(*align_ranks(positions[..., None], jnp.minimum(digit, 30))) & 1
    return jnp.multiply(*align_ranks(digits, (digit < 31).astype(digits.dtype))).astype(jnp.float32)


def _added(table: Callable[[Array, int], Array]) -> Callable[[Any, Array, Array], Array]:
    def add(params, x, positions):
        del params
        x = floating(x)
        return jnp.add(*align_ranks(x, table(positions, x.shape[-1]).astype(x.dtype)))

    return add


def _init_learned(key: Key[Array, ""], spec: Spec) -> dict[str, Array]:
    return {"table": 0.02 * jax.random.normal(key, (spec.max_length, spec.width))}


def _add_learned(params: Any, x: Array, positions: Array) -> Array:
    is_known = (positions >= 0) & (positions < len(params["table"]))
    x = floating(x)
    rows = jnp.where(is_known[..., None], params["table"][positions], jnp.nan)  # past the table: NaN, not a wrong row
    return jnp.add(*align_ranks(x, rows.astype(x.dtype)))


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

    Scores of turned queries and keys depend on i − j alone. A `fraction` of the features is turned, f of them;
    the others stay.
    `scaling` fits a trained model to texts `factor` times longer:

    - "interpolation" divides positions by `factor` (Chen et al. 2023, eq. 4);
    - "ntk" raises the base to base · factor^(f / (f − 2));
    - "yarn" and "yarn_index" interpolate slow pairs alone, and multiply what is turned by 0.1 ln factor + 1. "yarn"
      finds slow pairs by wavelength, as the paper does (Peng et al. 2023, §3.2–3.4); "yarn_index" by index, as its
      authors' code and the common libraries do. Both require `trained_length`, the length of texts in training.

    Raises ValueError for values that cannot be used, and for a `factor` or `trained_length` that `scaling` ignores.
    """
    x, turned = floating(x), round(fraction * x.shape[-1])
    _require_rotary(x.shape[-1], turned, base, fraction, scaling, factor, trained_length)
    speeds, gain = SCALINGS[scaling](turned, base, factor, trained_length)
    precise = jnp.promote_types(x.dtype, jnp.float32)
    angle = _angles(positions, speeds).astype(precise)
    x_pairs = x[..., :turned].astype(precise).reshape(*x.shape[:-1], -1, 2)
    cos, sin, even, odd = align_ranks(jnp.cos(angle), jnp.sin(angle), x_pairs[..., 0], x_pairs[..., 1])
    pairs = gain * jnp.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1)
    return jnp.concatenate([pairs.reshape(*pairs.shape[:-2], turned).astype(x.dtype), x[..., turned:]], axis=-1)


def _require_rotary(
    features: int, turned: int, base: float, fraction: float, scaling: str, factor: float, trained_length: int
) -> None:
    if not 0 < fraction <= 1:
        raise ValueError(f"fraction={fraction}: needs more than 0 and at most 1; it is a share of the features.")
    if turned % 2 or not turned:
        raise ValueError(f"fraction={fraction}: turns {turned} of {features} features, and needs to turn whole pairs.")
    more_than_0("base", base)
    if scaling not in SCALINGS:
        raise ValueError(f"scaling={scaling!r}: choose one of {', '.join(SCALINGS)}.")
    more_than_0("factor", factor)
    if scaling == "none" and factor != 1:
        others = ", ".join(name for name in SCALINGS if name != "none")
        raise ValueError(f"factor={factor}: does nothing without a scaling; add scaling= with one of {others}.")
    if scaling.startswith("yarn") and trained_length <= 0:
        raise ValueError(f"scaling={scaling!r}: requires trained_length, the length of the texts in training.")
    if trained_length > 0 and not scaling.startswith("yarn"):
        raise ValueError(f"trained_length={trained_length}: set it only with scaling='yarn' or 'yarn_index'.")


FEW, MANY = (
    1,
    32,
)  # turns over the trained length: pairs with fewer are slow, and interpolated; those with more are kept


def _yarn(turned: int, base: float, factor: float, trained_length: int) -> tuple[Array, float]:
    """Speeds change from interpolated to kept in proportion to turns, `FEW` to `MANY` (Peng et al. 2023, §3.2)."""
    speeds = frequencies(turned, base)
    turns = trained_length * speeds / (2 * math.pi)
    kept = jnp.clip((turns - FEW) / (MANY - FEW), 0, 1)
    return (1 - kept) * speeds / factor + kept * speeds, 0.1 * math.log(factor) + 1


def _yarn_index(turned: int, base: float, factor: float, trained_length: int) -> tuple[Array, float]:
    """Speeds change from kept to interpolated in proportion to a pair's index (Peng et al.'s code).

    Pair j turns L base^(−2j / f) / 2π times in a text of the trained length L. The first and last pair to change, of
    `MANY` and `FEW` turns, are rounded outwards to whole indices.
    """
    if base <= 1:
        raise ValueError(f"base={base}: scaling='yarn_index' needs more than 1.")
    if trained_length < 2 * math.pi:
        raise ValueError(f"trained_length={trained_length}: scaling='yarn_index' needs 7 or more.")

    def pair(turns):
        return turned * math.log(trained_length / (2 * math.pi * turns)) / (2 * math.log(base))

    first, last = max(math.floor(pair(MANY)), 0), min(math.ceil(pair(FEW)), turned - 1)
    width = last - first or 0.001
    interpolated = jnp.clip((jnp.arange(turned // 2) - first) / width, 0, 1)
    speeds = frequencies(turned, base)
    return interpolated * speeds / factor + (1 - interpolated) * speeds, 0.1 * math.log(max(factor, 1)) + 1


# scaling → (features turned, base, factor, trained length) → (each pair's speed, the gain of queries and keys)
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
    """The encoding over positions drawn from 0 … `longest` − 1, in rising order (Ruoss et al. 2023, §3).

    A text of n tokens has n of them, each choice of n alike, so that short texts in training have the positions of
    texts of up to `longest` tokens. Texts of a row have no position in common.
    """
    whole("longest", longest)

    def sample_positions(key, begins, first=0):
        if len(begins) > longest:
            raise ValueError(f"longest={longest}: cannot draw {len(begins)} different positions; raise it.")
        drawn = jnp.roll(jax.lax.top_k(jax.random.bits(key, (longest,)), len(begins))[1], first)
        return drawn[jnp.lexsort((drawn, begins))]

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
    "alibi": alibi,
    "t5": t5,
    "shaw": shaw,
    "fire": fire,
    "kerple_log": functools.partial(kerple, "log"),
    "kerple_power": functools.partial(kerple, "power"),
}
RANDOMIZED = "randomized_"


def make_encoding(text: str, /, key: str = "encoding", **options: Any) -> Encoding:
    """The encoding that a text names, with options: "rotary:scaling=ntk,factor=4", "t5:num_buckets=16", "shaw:clip=8".

    "randomized_NAME" is NAME over positions that are drawn from `longest`. Options may be arguments too. Raises
    ValueError for another name or option; `key` is what the error calls the text.
    """
    name, written = parse(text)
    base, options = name.removeprefix(RANDOMIZED), written | options
    if base not in BUILDERS or (base == "none" and base != name):
        raise ValueError(f"{key}={name!r}: choose one of {', '.join(ENCODINGS)}.")
    wrapped = {"longest": options.pop("longest")} if base != name and "longest" in options else {}

    def make():
        encoding = BUILDERS[base](**options)
        return encoding if base == name else randomized(encoding, **wrapped)

    return built(key, text, make, BUILDERS[base])


ENCODINGS: dict[str, Encoding] = {name: build() for name, build in BUILDERS.items()}
ENCODINGS |= {f"{RANDOMIZED}{name}": randomized(encoding) for name, encoding in ENCODINGS.items() if name != "none"}


def require_usable(text: str, encoding: Encoding, kind: str, spec: Spec, key: str = "encoding") -> None:
    """Raise ValueError where an encoding is not defined for a kind of attention or for these sizes."""
    if kind not in encoding.kinds:
        kinds = ", ".join(encoding.kinds)
        raise ValueError(f"{key}={text!r}: is for attention of kind {kinds}, not {kind}; choose another encoding.")
    if encoding.even and getattr(spec, encoding.even) % 2:
        raise ValueError(f"{key}={text!r}: needs an even {encoding.even}, not {getattr(spec, encoding.even)}.")
    try:
        jax.eval_shape(lambda: _used(encoding, spec))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{key}={text!r}: {reason(error, options_of(rotate)[2:])}") from None


def _used(encoding: Encoding, spec: Spec) -> list[Array]:
    """What every part of an encoding gives for a text of one token."""
    params, position = encoding.init(jax.random.key(0), spec), jnp.zeros((1, 1), jnp.int32)
    x, heads = jnp.zeros((1, 1, spec.width)), jnp.zeros((1, spec.heads, 1, spec.head_size))
    parts: dict[Callable | None, tuple[Array, ...]] = {
        encoding.add: (x, position),
        encoding.rotate: (heads, position[:, None]),
        encoding.bias: (heads, position, position),
        encoding.mix: (jnp.ones((1, spec.heads, 1, 1)), position, position),
    }
    return [part(params, *arguments) for part, arguments in parts.items() if part is not None]


def require_room(text: str, encoding: Encoding, spec: Spec, length: int, key: str = "encoding") -> None:
    """Raise ValueError where a text is longer than an encoding has positions for."""
    longest = encoding.max_length(spec)
    if longest is not None and length > longest:
        raise ValueError(f"{key}={text!r}: has positions for {longest} tokens, not for {length}.")


def _angles(positions: Array, speeds: Array) -> Float[Array, "... half"]:
    return jnp.multiply(*align_ranks(positions[..., None].astype(jnp.float32), speeds))
