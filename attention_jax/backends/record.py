"""What a backend is, and what is known of a call when it is asked whether it can do it."""

from collections.abc import Callable
from typing import NamedTuple

import jax
from jaxtyping import Array

from attention_jax.ops.attention import Attended, Attention


class Call(NamedTuple):
    """What is known of a call beside what is asked: when a model is built some of it, at the call all of it.

    None stands for what is not known yet. `dtype` is that of queries, keys and values: all of theirs where they differ.
    """

    dtype: str | None = None
    queries: int | None = None
    keys: int | None = None
    features: int | None = None  # of a query
    value_features: int | None = None
    has_dropout: bool = False  # of weights, where the record does not have it yet

    @property
    def is_uneven(self) -> bool:
        """Whether queries are known not to be as many as keys."""
        return None not in (self.queries, self.keys) and self.queries != self.keys

    @classmethod
    def of(cls, query: Array, key: Array, value: Array) -> "Call":
        """Of the arrays of a call."""
        dtypes = dict.fromkeys(str(array.dtype) for array in (query, key, value))
        return cls(" and ".join(dtypes), query.shape[-2], key.shape[-2], query.shape[-1], value.shape[-1])


class Backend(NamedTuple):
    """A way to compute attention.

    `attend(query, key, value, attention)` does. `refusal(attention, call)` says why it cannot do what is asked, "" if
    it can; the call is None where nothing but the record is asked about. `mark` is what a line of the text of every
    program that is compiled with it has, all of it; () where nothing tells it. A backend that reads no caches is for
    whole texts. The products of one that `is_fused` are inside kernels, where nothing counts them.
    """

    attend: Callable[[Array, Array, Array, Attention], Attended]
    refusal: Callable[[Attention, Call | None], str] = lambda attention, call: ""
    mark: tuple[str, ...] = ()
    reads_caches: bool = True
    is_fused: bool = False


def first_of(reasons: dict[str, bool]) -> str:
    """The first reason that holds, or ""."""
    return next((reason for reason, holds in reasons.items() if holds), "")


def platform() -> str:
    """What programs are compiled for: the devices of the mesh that is set, or else of this machine."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return jax.default_backend() if device is None else device.platform
