"""Rollout and flow of attention through layers, against loops and against every cut of a small graph."""

import itertools

import numpy as np
import pytest

from attention_jax.evaluation.propagation import flow, rollout, translator_layers

NODES = 3


def rows(*shape):
    weights = np.random.default_rng(sum(shape)).random(shape)
    return weights / weights.sum(axis=-1, keepdims=True)


def least_cut(layers, top, bottom):
    """The capacity of the least cut between two nodes, over every set of nodes that has the one and not the other."""
    places = [(level, node) for level in range(len(layers) + 1) for node in range(NODES)]
    start, end = (len(layers), top), (0, bottom)
    others = [place for place in places if place not in (start, end)]
    cuts = []
    for chosen in itertools.product((False, True), repeat=len(others)):
        inside = {start, *(place for place, is_in in zip(others, chosen, strict=True) if is_in)}
        edges = ((level + 1, i, level, j) for level in range(len(layers)) for i in range(NODES) for j in range(NODES))
        cut = [layers[low][i, j] for high, i, low, j in edges if (high, i) in inside and (low, j) not in inside]
        cuts.append(sum(cut))
    return min(cuts)


@pytest.mark.parametrize("count", [1, 2])
def test_flow_is_the_least_cut_between_two_nodes(count):
    layers = list(rows(count, NODES, NODES))
    expected = [[least_cut(layers, top, bottom) for bottom in range(NODES)] for top in range(NODES)]
    np.testing.assert_allclose(flow(layers, range(NODES), range(NODES)), expected, atol=1e-5)


def test_rollout_of_an_encoder_is_the_product_of_its_layers_with_their_residuals():
    kinds = {"encoder": rows(2, 4, 3, 3), "decoder": rows(0, 4, 2, 2), "cross": rows(0, 4, 2, 3)}
    expected = np.eye(3)
    for heads in kinds["encoder"]:
        expected = (sum(heads) / len(heads) + np.eye(3)) / 2 @ expected
    found = rollout(translator_layers(kinds))
    np.testing.assert_allclose(found[:3, :3], expected)
    np.testing.assert_array_equal(found[3:], np.eye(5)[3:])


def test_rollout_of_a_translator_mixes_the_target_with_itself_and_then_with_the_encoded_source():
    kinds = {"encoder": rows(2, 2, 3, 3), "decoder": rows(2, 2, 4, 4), "cross": rows(2, 2, 4, 3)}
    means = {kind: weights.mean(axis=1) for kind, weights in kinds.items()}
    source, target = np.eye(3), np.eye(4)
    for layer in means["encoder"]:
        source = (source + layer @ source) / 2
    of_source = np.zeros((4, 3))
    for own, cross in zip(means["decoder"], means["cross"], strict=True):
        of_source, target = (of_source + own @ of_source) / 2, (target + own @ target) / 2
        of_source, target = (of_source + cross @ source) / 2, target / 2
    found = rollout(translator_layers(kinds))
    np.testing.assert_allclose(found[3:, :3], of_source)
    np.testing.assert_allclose(found[3:, 3:], target)
    np.testing.assert_allclose(found.sum(axis=-1), 1)


def test_all_flows_along_the_only_path():
    kinds = {"encoder": np.ones((1, 1, 1, 1)), "decoder": np.ones((1, 1, 1, 1)), "cross": np.ones((1, 1, 1, 1))}
    assert flow(translator_layers(kinds), [1], [0]) == pytest.approx(0.5)
