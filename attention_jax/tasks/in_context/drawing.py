"""Draws of functions as a model reads them: x₁ y₁ x₂ y₂ … and a query, each a vector."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key
from ml_collections import ConfigDict

from attention_jax.data.functions import KINDS, Draw, draw
from attention_jax.errors import UserError

TOKENS = ("apart", "joined")  # whether the vector of a value has its key beside it


class Prompts(NamedTuple):
    """Texts of vectors, and the value that each key's vector, at 0, 2, 4, …, is to be answered with."""

    vectors: Float[Array, "batch t f"]
    answers: Float[Array, "batch keys"]


def check(config: ConfigDict) -> None:
    """Raise UserError for values of `config.data` that cannot be used."""
    data = config.data
    for name, known in (("function", KINDS), ("tokens", TOKENS)):
        if data[name] not in known:
            raise UserError(f"config.data.{name}={data[name]!r}: choose one of {', '.join(known)}.")
    for name, least in (("pairs", 1), ("dimensions", 1), ("batch", 1), ("noise", 0)):
        if data[name] < least:
            raise UserError(f"config.data.{name}={data[name]}: needs {least} or more.")


def drawn(data: ConfigDict, key: Key[Array, ""], pairs: int, queries: int) -> Draw:
    """A draw of `data.function`, whose values and truth have one feature."""
    return draw(key, pairs, queries, data.dimensions, data.noise, (data.function,))


def training_prompts(data: ConfigDict, key: Key[Array, ""]) -> Prompts:
    """A batch of `data.pairs` pairs and a query each, whose every value is to be answered, as noisy as it is drawn."""
    draws = jax.vmap(functools.partial(drawn, data, pairs=data.pairs + 1, queries=0))(jax.random.split(key, data.batch))
    return Prompts(vectors_of(data, draws.key, draws.value), draws.value[..., 0])


def prompts_of(data: ConfigDict, draws: Draw) -> Float[Array, "batch t f"]:
    """The pairs of each draw and its first query."""
    keys = jnp.concatenate([draws.key, draws.query[:, :1]], axis=1)
    return vectors_of(data, keys, jnp.concatenate([draws.value, jnp.zeros_like(draws.value[:, :1])], axis=1))


def vectors_of(
    data: ConfigDict, keys: Float[Array, "batch n d"], values: Float[Array, "batch n 1"]
) -> Float[Array, "batch t f"]:
    """Keys and values in turn, without the last value: (x, 0, 0) and (0, y, 1), or (x, y, 1) where they are `joined`.

    The last feature tells values from keys. They are apart in Garg et al. 2022, and joined in von Oswald et al. 2023.
    """
    beside = keys if data.tokens == "joined" else jnp.zeros_like(keys)
    of_key = jnp.concatenate([keys, jnp.zeros_like(values), jnp.zeros_like(values)], axis=-1)
    of_value = jnp.concatenate([beside, values, jnp.ones_like(values)], axis=-1)
    both_BxNx2xF = jnp.stack([of_key, of_value], axis=2)
    return both_BxNx2xF.reshape(len(keys), -1, of_key.shape[-1])[:, :-1]
