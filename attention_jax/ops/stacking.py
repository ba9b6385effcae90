"""Layers' variables: a tree for each layer, or stacked: one tree for all, whose arrays have layers first."""

import re
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

STACKS = {"layers": "layer", "encoders": "encoder", "decoders": "decoder"}  # a stack's name, and that of its layers
_NAMES = {layer: stack for stack, layer in STACKS.items()}


def stack_layers(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Variables by collection with layers stacked: `layer_0` … `layer_n`, arrays `[…]`, as `layers`, `[layers, …]`."""
    return {collection: _stacked(tree) for collection, tree in variables.items()}


def unstack_layers(variables: Mapping[str, Any]) -> dict[str, Any]:
    """The variables before `stack_layers`."""
    return {collection: _unstacked(tree) for collection, tree in variables.items()}


def at_layer(stack: Any, index: int) -> Any:
    """The tree of one layer of a stack."""
    return jax.tree.map(lambda array: array[index], stack)


def stack(trees: list[Any]) -> Any:
    """The trees of layers as one, layers first."""
    return jax.tree.map(lambda *arrays: jnp.stack(arrays), *trees)


def layer_axes(path: tuple) -> int:
    """How many leading axes of a parameter count layers, by its path in the tree of parameters: 1 within a stack."""
    return int(getattr(path[0], "key", None) in STACKS) if path else 0


def _stacked(tree: Mapping[str, Any]) -> dict[str, Any]:
    others: dict[str, Any] = {}
    layers: dict[str, dict[int, Any]] = {}
    for key, value in tree.items():
        name = re.fullmatch(r"(\w+)_(\d+)", key)
        if name and name[1] in _NAMES:
            layers.setdefault(_NAMES[name[1]], {})[int(name[2])] = value
        else:
            others[key] = value
    return others | {key: stack([found[index] for index in sorted(found)]) for key, found in layers.items()}


def _unstacked(tree: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in tree.items():
        if key in STACKS:
            count = len(jax.tree.leaves(value)[0])
            found |= {f"{STACKS[key]}_{index}": at_layer(value, index) for index in range(count)}
        else:
            found[key] = value
    return found
