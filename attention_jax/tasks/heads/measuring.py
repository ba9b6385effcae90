"""All that is measured of a run's heads, seed by seed.

A head's number means nothing in another seed, for the heads of a layer could change places. Heads are told by their
rank in their layer instead: by the loss without them, on other sentences than those that they are measured on.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from tqdm import tqdm

from attention_jax.evaluation.ranking import spearman
from attention_jax.evaluation.statistics import over_seeds
from attention_jax.tasks.heads.gating import Sizes, by_kind, count, edits_of, first_removed, one_removed
from attention_jax.tasks.heads.patching import Carried, recovered, recovered_intervals
from attention_jax.tasks.heads.roles import ROLES, count_roles
from attention_jax.tasks.heads.session import Session
from attention_jax.tasks.heads.translation import TranslationSession
from attention_jax.training.state import Variables

PARTS = ("removing", "roles", "patching", "page")
Row = Float[np.ndarray, " heads"]  # a number of every head, kind by kind, layer by layer
Rows = dict[str, Sequence[Any]]  # such numbers by name; None where a head cannot have one


def measure(session: Session) -> dict[str, Any]:
    """Every part of `config.parts`, of every seed: means with intervals, and each seed's own numbers."""
    parts, heads = session.config.parts, count(session.sizes)
    of_seeds: list[dict[str, Any]] = []
    carried: list[Carried] = []
    for seed, variables in enumerate(tqdm(session.variables, "heads", unit="seed", dynamic_ncols=True)):
        worth = _worth(session, variables)
        order = ranked(worth, session.sizes)
        numbers, rows = removing(session, seed, worth) if "removing" in parts else ({}, {})
        if "roles" in parts:
            looks = session.looks(seed)
            numbers["roles"] = count_roles(looks, session.config.roles) | {"chance": session.chances()}
            rows |= {role: _in_a_row(looks[role], session.sizes) for role in ROLES if role in looks}
        rows = {name: [row[head] for head in order] for name, row in rows.items()}
        if "patching" in parts and isinstance(session, TranslationSession):
            carried.append(session.carried(variables, session.couples).of_heads(order))
            share = recovered(carried[-1]).tolist()
            rows["recovered"] = share[:heads]
            together = dict(zip(session.sizes, share[heads:], strict=True))
            numbers["patching"] = {"together": together, "right": float(carried[-1].is_right.mean())}
        of_seeds.append(numbers | {"heads": by_rank(rows, session.sizes)})
    result = over_seeds(of_seeds) | {"seeds": list(session.of_run.seeds)}
    if carried:
        result["ci95"] = _merged(result.get("ci95", {}), carried_intervals(carried, session.sizes))
    return result


def carried_intervals(of_seeds: Sequence[Carried], sizes: Sizes) -> dict[str, Any]:
    """Intervals over seeds and couples of what heads carry, each by its rank, and all of a kind together."""
    ends = [[low, high] for _, low, high in recovered_intervals(of_seeds)]
    single, kinds = ends[: count(sizes)], ends[count(sizes) :]
    return {
        "heads": by_rank({"recovered": single}, sizes),
        "patching": {"together": dict(zip(sizes, kinds, strict=True))},
    }


def removing(session: Session, seed: int, worth: Row) -> tuple[dict[str, Any], Rows]:
    """What the loss and BLEU are without each head and without ever more of them; and what the gradient says of each.

    `worth` is the loss without each head on `session.ordering`, by which, and by the gradient there, heads are pruned.
    """
    sizes, heads, variables = session.sizes, count(session.sizes), session.variables[seed]
    orders = _orders(session, seed, worth, session.estimates(variables, session.batches("ordering")))
    gates = [one_removed(heads), *(first_removed(order, heads) for order in orders.values())]
    means = session.losses(variables, session.batches("split"), np.concatenate(gates)).means
    single, *curves = np.split(means, np.cumsum([len(part) for part in gates])[:-1])
    pruning = dict(zip(orders, curves, strict=True))
    drawn = [pruning.pop(name) for name in orders if name.startswith("random")]
    shares = {name: [spared(curve, session.config.tolerance)] for name, curve in pruning.items()}
    shares["random"] = [spared(curve, session.config.tolerance) for curve in drawn]
    pruning["random"] = np.mean(drawn, axis=0)
    estimate = session.estimates(variables, session.batches("split"))
    change, of_kinds = single[1:] - single[0], by_kind(estimate, sizes)
    of_all = {name: order for name, order in orders.items() if name not in sizes}
    numbers, rows = _bleu(session, seed, of_all)
    return numbers | {
        "loss": float(single[0]),
        "spearman": {
            "all": spearman(change, estimate),
            **{kind: spearman(part.ravel(), of_kinds[kind].ravel()) for kind, part in by_kind(change, sizes).items()},
        },
        "pruning": {name: {str(k): float(loss) for k, loss in enumerate(curve)} for name, curve in pruning.items()},
        "spared": {name: float(np.mean(found)) for name, found in shares.items()},
    }, {"change": change.tolist(), "estimate": estimate.tolist()} | rows


def _orders(session: Session, seed: int, worth: Row, estimate: Row) -> dict[str, Int[np.ndarray, " n"]]:
    """In which order heads are removed, by name: what is worth least first; of one kind alone, by the estimate."""
    first = np.cumsum([0, *(layers * heads for layers, heads in session.sizes.values())])
    kinds = {
        kind: first[n] + np.argsort(estimate[first[n] : first[n + 1]], kind="stable")
        for n, kind in enumerate(session.sizes)
    }
    draw = np.random.default_rng([session.config.seeds[0], seed])
    drawn = {f"random {n}": draw.permutation(len(worth)) for n in range(session.config.orders)}
    return {
        "exact": np.argsort(worth, kind="stable"),
        "estimate": np.argsort(estimate, kind="stable"),
        **kinds,
        **drawn,
    }


def spared(curve: Float[np.ndarray, " n+1"], tolerance: float) -> float:
    """The share of an order's heads that can go before the loss has risen by more than `tolerance` nats a token."""
    too_much = curve > curve[0] + tolerance
    removed = int(np.argmax(too_much)) - 1 if too_much.any() else len(curve) - 1
    return removed / (len(curve) - 1)


def ranked(worth: Row, sizes: Sizes) -> list[int]:
    """The indices of all heads, those of each layer with what is worth most first."""
    indices, of_kinds = by_kind(np.arange(len(worth)), sizes), by_kind(worth, sizes)
    orders = [np.take_along_axis(indices[kind], np.argsort(-of_kinds[kind], axis=-1), axis=-1) for kind in sizes]
    return np.concatenate([order.ravel() for order in orders]).tolist()


def by_rank(rows: Rows, sizes: Sizes) -> dict[str, Any]:
    """Numbers of ranked heads, by kind, layer and rank, from 1; what a head cannot have is left out."""
    heads = iter(range(count(sizes)))
    return {
        kind: {
            str(layer + 1): {str(rank + 1): _of_head(rows, next(heads)) for rank in range(of_layer)}
            for layer in range(layers)
        }
        for kind, (layers, of_layer) in sizes.items()
    }


def _of_head(rows: Rows, head: int) -> dict[str, Any]:
    found = {name: row[head] for name, row in rows.items()}
    return {name: one for name, one in found.items() if one is not None}


def _worth(session: Session, variables: Variables) -> Row:
    """How much worse the loss is without each head, on what orders them."""
    gates = one_removed(count(session.sizes))
    means = session.losses(variables, session.batches("ordering"), gates).means
    return means[1:] - means[0]


def _bleu(session: Session, seed: int, orders: Mapping[str, Int[np.ndarray, " heads"]]) -> tuple[dict[str, Any], Rows]:
    """BLEU of a seed's whole model and without the first 0, 1, … heads of orders, and how it changes without each.

    That of random orders is their mean. Nothing where nothing is translated.
    """
    heads = count(session.sizes)
    gates = np.concatenate([one_removed(heads), *(first_removed(order, heads) for order in orders.values())])
    settings, places = np.unique(gates, axis=0, return_inverse=True)  # the whole model, and none of it, stand in all
    found = session.bleu(seed, (edits_of(of_setting, session.sizes) for of_setting in settings))
    if not found:
        return {}, {}
    single, *curves = np.array(found)[places.ravel()].reshape(-1, heads + 1)
    pruned = {name: curve for name, curve in zip(orders, curves, strict=True) if not name.startswith("random")}
    pruned["random"] = np.mean(curves[len(pruned) :], axis=0)
    numbers = {"bleu": float(single[0]), "pruned": {name: _by_count(curve) for name, curve in pruned.items()}}
    return numbers, {"bleu_change": (single[1:] - single[0]).tolist()}


def _by_count(curve: Float[np.ndarray, " n+1"]) -> dict[str, dict[str, float]]:
    return {str(removed): {"bleu": float(score)} for removed, score in enumerate(curve)}


def _in_a_row(of_kinds: Mapping[str, np.ndarray], sizes: Sizes) -> list[Any]:
    nothing = {kind: np.full(shape, None) for kind, shape in sizes.items()}
    return np.concatenate([of_kinds.get(kind, nothing[kind]).ravel() for kind in sizes]).tolist()


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Both trees in one; where both have a leaf, it is the second's."""
    both = {key: _merged(one[key], other[key]) for key in one.keys() & other.keys() if isinstance(one[key], Mapping)}
    return {**one, **other, **both}
