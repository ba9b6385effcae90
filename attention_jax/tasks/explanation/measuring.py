"""How well attention explains what a trained translator writes: the numbers of one seed, and maps to draw."""

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float
from ml_collections import ConfigDict

from attention_jax import stopping
from attention_jax.errors import UserError
from attention_jax.evaluation.alignment import Alignments, agreement, alignment_error_rate
from attention_jax.evaluation.extrapolation import kendall
from attention_jax.evaluation.propagation import flow, rollout, translator_layers
from attention_jax.modules.families import make_family
from attention_jax.tasks.explanation.importance import IMPORTANCE, KIND, weights_of
from attention_jax.tasks.explanation.intervening import DRAWS, Changed, adversary, intervene
from attention_jax.tasks.explanation.sample import Row, Sample
from attention_jax.tasks.translation.opened import OpenedTranslator
from attention_jax.training.state import Variables

Map = Float[np.ndarray, "target source"]  # without the target's end
Maps = dict[str, list[Map]]  # by measure, of every sentence
PREDICTED = ("total_variation", "is_flipped")  # of predictions
OF_WEIGHTS = ("attention", "rollout", "flow")  # measures that are made of weights alone


class Programs(NamedTuple):
    """A model's compiled programs, which all its seeds share: functions of variables, a batch, and more."""

    layer: int  # of the decoder, whose attention is taken for the explanation
    weights: Callable
    importance: dict[str, Callable]
    intervene: Callable
    adversary: Callable


def programs_of(opened: OpenedTranslator, asked: ConfigDict) -> Programs:
    """The programs of an opened run, whose own config names the layer; the adversary searches as `asked` says.

    Raises UserError for a model whose weights are no shares of what is attended to.
    """
    model, settings = opened.model, opened.config.model.kwargs
    for key in ("family", "cross_family", "encoder_family"):
        if key in settings and make_family(settings[key]).is_signed:
            raise UserError(
                f"{opened.folder}: config.model.kwargs.{key}={settings[key]!r} makes weights below 0, which explain as "
                "no shares of the source do. Name runs of other families."
            )
    return Programs(
        opened.config.evaluate.alignment_layer,
        jax.jit(functools.partial(weights_of, model)),
        {name: jax.jit(functools.partial(measure, model)) for name, measure in IMPORTANCE.items()},
        jax.jit(functools.partial(intervene, model)),
        jax.jit(functools.partial(adversary, model, asked.steps, asked.learning_rate)),
    )


def explain(programs: Programs, variables: Variables, sample: Sample, asked: ConfigDict) -> tuple[dict, Maps]:
    """The numbers of one seed, nested, and the maps of every measure and adversary."""
    kinds = sample.rows(functools.partial(programs.weights, variables))
    maps = _maps(programs, variables, sample, kinds)
    numbers = {
        "alignment": {name: _aligned(found, sample.alignments) for name, found in maps.items()},
        "correlation": _correlations(maps),
        "intervention": _interventions(programs, variables, sample, asked),
    }
    moved = {f"{epsilon:g}": _adversary(programs, variables, sample, asked, epsilon) for epsilon in asked.epsilons}
    numbers["adversary"] = {
        name: _moved(programs.layer, sample.alignments, kinds, changes) for name, changes in moved.items()
    }
    return numbers, maps | {
        f"adversary, ε = {name}": [_explanation(programs.layer, change) for change in changes]
        for name, changes in moved.items()
    }


def _maps(programs: Programs, variables: Variables, sample: Sample, kinds: Sequence[Row]) -> Maps:
    """Each measure's map of every sentence; rollout and flow where encoder and decoder attend."""
    maps = {"attention": [_explanation(programs.layer, found) for found in kinds]}
    if {"encoder", "decoder"} <= set(kinds[0]):
        maps |= {"rollout": [*map(_rollout, kinds)], "flow": [*map(_flow, kinds)]}
    for name, program in programs.importance.items():
        rows = sample.rows(lambda batch, program=program: {"map": program(variables, batch)})  # type: ignore[misc]
        maps[name] = [row["map"][:-1] for row in rows]
    return maps


def _explanation(layer: int, found: Mapping[str, np.ndarray]) -> Map:
    """The mean over heads of one layer's attention to the source: what is shown as an explanation."""
    return found[KIND][layer].mean(axis=0)[:-1]


def _rollout(kinds: Row) -> Map:
    sources = kinds[KIND].shape[-1]
    return rollout(translator_layers(kinds))[sources:-1, :sources]


def _flow(kinds: Row) -> Map:
    stopping.poll()
    targets, sources = kinds[KIND].shape[-2:]
    return flow(translator_layers(kinds), range(sources, sources + targets - 1), range(sources))


def _aligned(maps: Sequence[Map], alignments: Alignments) -> dict[str, float]:
    return {
        "alignment_error_rate": alignment_error_rate(maps, alignments),
        "alignment_agreement": agreement(maps, alignments),
    }


def _correlations(maps: Maps) -> dict[str, dict[str, float]]:
    """Kendall's τ between what is made of weights and what is not, and between the two that are not."""
    pairs = [(one, other) for one in OF_WEIGHTS if one in maps for other in IMPORTANCE]
    pairs += itertools.combinations(IMPORTANCE, 2)
    return {f"{one} and {other}": {"kendall_tau": mean_kendall(maps[one], maps[other])} for one, other in pairs}


def mean_kendall(maps: Sequence[Map], others: Sequence[Map]) -> float:
    """The mean over target words of τ_b over source words; a word for which a map is constant is left out."""
    taus = [kendall(*rows) for pair in zip(maps, others, strict=True) for rows in zip(*pair, strict=True)]
    known = [tau for tau in taus if not math.isnan(tau)]
    return float(np.mean(known)) if known else math.nan


def _interventions(programs: Programs, variables: Variables, sample: Sample, asked: ConfigDict) -> dict[str, dict]:
    """How far predictions move under each of `DRAWS`, the mean over several draws."""
    keys = jax.random.split(jax.random.key(asked.seeds[0]), asked.draws)

    def predicted(key, batch):
        changes = programs.intervene(variables, batch, key)
        return {f"{name} {what}": getattr(changes[name], what) for name in DRAWS for what in PREDICTED}

    rows = [row for key in keys for row in sample.rows(functools.partial(predicted, key))]
    means = _means(rows, *rows[0])
    return {name: {what: means[f"{name} {what}"] for what in PREDICTED} for name in DRAWS}


def _adversary(programs: Programs, variables: Variables, sample: Sample, asked: ConfigDict, epsilon: float) -> list:
    key = jax.random.key(asked.seeds[0])
    return sample.rows(lambda batch: _rows_of(programs.adversary(variables, batch, epsilon, key)))


def _moved(layer: int, alignments: Alignments, own: Sequence[Row], changes: Sequence[Row]) -> dict[str, float]:
    """How far adversarial weights are from the model's own and move its predictions, and how they align words."""
    shown = [[_explanation(layer, row) for row in pair] for pair in zip(own, changes, strict=True)]
    elsewhere = [one.argmax(axis=-1) != other.argmax(axis=-1) for one, other in shown]
    return {
        **_means(changes, "jensen_shannon_of_weights", "total_variation_of_weights"),
        **_means(changes, *PREDICTED),
        "elsewhere": float(np.concatenate(elsewhere).mean()),
        **_aligned([other for _, other in shown], alignments),
    }


def _means(changes: Sequence[Row], *names: str) -> dict[str, float]:
    """Means over all words but ends."""
    return {name: float(np.concatenate([row[name][:-1] for row in changes]).mean()) for name in names}


def _rows_of(changed: Changed) -> dict[str, Any]:
    """What was changed as rows have it, in which weights are by kind."""
    found = changed._asdict()
    return {KIND: found.pop("weights"), **found}
