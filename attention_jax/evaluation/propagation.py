"""Where attention leads through a model's layers: rollout and flow (Abnar & Zuidema 2020).

Layers are a list of `[N, N]` matrices, the first one first: row i says from which nodes of the layer below i comes.
An encoder–decoder is one such graph: its nodes are the words of the source, then those of the target.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

Layer = Float[np.ndarray, "n n"]
UNITS = 1 << 20  # of capacity: SciPy's flows are whole numbers


def translator_layers(kinds: Mapping[str, Float[np.ndarray, "layers heads q k"]]) -> list[Layer]:
    """The graph of a Transformer that translates, of its heads' weights by kind: "encoder", "decoder", "cross".

    Weights are means over heads. Each is one layer, ½ (A + I) for the residual connection (§3), first the encoder's,
    then of every layer of the decoder that to the target and that to the source. Words that a layer leaves as they are
    come from themselves.
    """
    means = {kind: np.asarray(weights, np.float64).mean(axis=1) for kind, weights in kinds.items()}
    targets, sources = means["cross"].shape[1:]
    source, target = slice(0, sources), slice(sources, sources + targets)
    placed = [(source, source, weights) for weights in means["encoder"]]
    for own, cross in zip(means["decoder"], means["cross"], strict=True):
        placed += [(target, target, own), (target, source, cross)]
    return [_placed(sources + targets, *one) for one in placed]


def _placed(nodes: int, queries: slice, keys: slice, weights: np.ndarray) -> Layer:
    """The layer in which some nodes attend and all have their residual connection."""
    layer = np.eye(nodes)
    layer[queries] /= 2
    layer[queries, keys] += weights / 2
    return layer


def rollout(layers: Sequence[Layer]) -> Layer:
    """A_L ⋯ A_2 A_1 (§3): how much of each node at the bottom is in each node at the top, were mixing linear."""
    found = np.eye(len(layers[0]))
    for layer in layers:
        found = layer @ found
    return found


def flow(
    layers: Sequence[Layer], tops: Sequence[int], bottoms: Sequence[int]
) -> Float[np.ndarray, "len(tops) len(bottoms)"]:
    """The most that can flow from each of some nodes at the top to each at the bottom (§3).

    Weights are the capacities of the edges between layers.
    """
    from scipy.sparse.csgraph import maximum_flow

    nodes = len(layers[0])
    network = _network(layers)
    found = [
        [maximum_flow(network, len(layers) * nodes + top, bottom).flow_value for bottom in bottoms] for top in tops
    ]
    return np.array(found) / UNITS


def _network(layers: Sequence[Layer]):
    """The capacities between all nodes of all layers, the bottom's first, in whole numbers."""
    from scipy.sparse import csr_array

    count, nodes = len(layers) + 1, len(layers[0])
    capacities = np.zeros((count, nodes, count, nodes), np.int32)
    for index, layer in enumerate(layers):
        capacities[index + 1, :, index] = np.round(layer * UNITS)
    return csr_array(capacities.reshape(count * nodes, -1))
