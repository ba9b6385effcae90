"""Language models whose induction heads are measured while they train: on repeated random tokens, or on a text."""

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from ml_collections import ConfigDict

from attention_jax.data.repeated import FIRST, repeated
from attention_jax.errors import UserError
from attention_jax.evaluation.phases import steepest_rise
from attention_jax.models.language_model import LanguageModel
from attention_jax.ops.induction import prefix_matching
from attention_jax.ops.losses import cross_entropy
from attention_jax.tasks.language_model.model import Texts, draw_positions, logits_of
from attention_jax.tasks.language_model.source import Measure, Source, require_positive
from attention_jax.tasks.language_model.stream import check as check_stream
from attention_jax.tasks.language_model.stream import open_stream
from attention_jax.training.feeding import Batches
from attention_jax.training.placement import everywhere, whole
from attention_jax.training.state import Variables

HELD_OUT = 1_000_000  # folded into the key of what is measured; no training step folds in so much
EARLY, PART = 10, 16  # the early tokens begin at a tenth of a row; early and late ones are a sixteenth of it
SHORTEST = 16  # tokens of a row, so that a sixteenth is one
LEAST = 2  # tokens that repeat
BEST, GAIN = "induction.prefix_best", "induction.in_context_gain"  # metrics whose rise is dated


def open_repeated(config: ConfigDict, folder: Path | None) -> Source:
    """Rows of random tokens that repeat, drawn inside the training step; each row's period is drawn too."""
    del folder
    _require_repeating(config)
    data, vocabulary = config.data, FIRST + config.data.symbols
    table = {"step": np.arange(config.train.steps, dtype=np.int32)[:, None]}

    def batches(seed, step, stop):
        del seed
        return Batches(np.arange(step, min(stop, step + config.train.steps_per_call))[:, None], table)

    def drawn(key, rows) -> Texts:
        tokens = _rows(key, rows, data.shortest, data.length, vocabulary)
        return Texts(tokens[:, :-1], tokens[:, 1:], jnp.ones(tokens[:, 1:].shape, bool))

    def texts(row, hyper):
        return drawn(jax.random.fold_in(jax.random.fold_in(hyper["key"], 1), row["step"][0, 0]), data.batch)

    def held_out():
        return drawn(jax.random.fold_in(jax.random.key(data.seed), HELD_OUT + 1), data.rows)

    def measure(model):
        return _loss_of(held_out(), model)

    source = Source(
        vocabulary=vocabulary,
        trained=data.length,
        lengths=(data.length,),
        longest=data.length,
        length_keys=f"config.data.length={data.length}",
        batches=batches,
        texts=texts,
        measure=measure,
        measure_so_far=measure,
        example=lambda config, length: held_out().tokens[:1, :length],
        steps_per_epoch=config.train.steps,
    )
    return _with_induction(config, source, held_out)


def open_text(config: ConfigDict, folder: Path | None) -> Source:
    """A text of any size in windows, as a language model's; its held-out rows are measured for their gain."""
    require_measurable(config)
    require_positive(config.data, "rows")
    check_stream(config)
    if config.data.packing != "windows":
        raise UserError(f"config.data.packing={config.data.packing!r}: a gain is of windows. Choose 'windows'.")
    source = open_stream(config, folder)

    def rows() -> Texts:
        assert source.held_out is not None
        found: Any = source.held_out(config.data.rows, config.data.length)
        return Texts(found.tokens, found.targets, found.is_counted)

    return _with_induction(config, source, rows)


OPENERS = {"repeated": open_repeated, "text": open_text}


def require_measurable(config: ConfigDict) -> None:
    """Raise UserError for rows in which no early and late tokens can be told apart, and for models without heads."""
    if config.data.length < SHORTEST:
        raise UserError(f"config.data.length={config.data.length}: needs {SHORTEST} or more.")
    if config.model.mixer != "attention":
        raise UserError(f"config.model.mixer={config.model.mixer!r}: has no heads. Choose attention.")


def require_dated(config: ConfigDict) -> None:
    """Raise UserError where training is measured less than twice: nothing could be dated."""
    if 2 * config.train.evaluate_every > config.train.steps:
        raise UserError(
            f"config.train.evaluate_every={config.train.evaluate_every}: is more than half of config.train.steps="
            f"{config.train.steps}, and what rises between two evaluations is dated. Lower it."
        )


def _require_repeating(config: ConfigDict) -> None:
    """Raise UserError for values with which no rows can be drawn that repeat."""
    data = config.data
    require_measurable(config)
    require_positive(data, "length", "batch", "rows")
    if data.symbols < 2:
        raise UserError(f"config.data.symbols={data.symbols}: needs 2 or more.")
    if not LEAST <= data.shortest <= data.length // 2:
        raise UserError(
            f"config.data.shortest={data.shortest}: needs {LEAST} to {data.length // 2}, half of config.data.length: "
            "what is drawn must repeat."
        )
    if config.train.accumulate > 1:
        raise UserError(f"config.train.accumulate={config.train.accumulate}: rows are drawn inside a step. Set it 1.")


def phase_of(metrics: Sequence[Mapping[str, Any]], seed: int) -> dict[str, float]:
    """When a seed's best prefix-matching score and its in-context gain rise most, in steps, and how far they rise."""
    found: dict[str, float] = {}
    for name in (BEST, GAIN):
        lines = [line for line in metrics if line["seed"] == seed and line.get(name) is not None]
        rise = steepest_rise([line["step"] for line in lines], [line[name] for line in lines])
        short = name.partition(".")[2]
        found |= {f"{short}_step": rise.step, f"{short}_rise": rise.height}
    return found


def gain_of(nats: Float[np.ndarray, " length"]) -> float:
    """The loss of early tokens minus that of late ones: how much the context of a row helps (Olsson et al. 2022).

    Early ones begin at a tenth of the row, as the 50th token of about 500 does; late ones are its last.
    """
    early, part = len(nats) // EARLY, len(nats) // PART
    return float(nats[early : early + part].mean() - nats[-part:].mean())


def _with_induction(config: ConfigDict, source: Source, rows: Any) -> Source:
    def both(measure_of):
        return lambda model: _measured(config, source, rows, model, measure_of(model))

    found = source._replace(measure=both(source.measure), measure_so_far=both(source.measure_so_far))
    return found._replace(measured=("validation", "induction"))


def _measured(config: ConfigDict, source: Source, rows: Any, model: LanguageModel, measure: Measure) -> Measure:
    """What a source measures of a model, and its induction heads."""

    @jax.jit
    def matching(variables: Variables, tokens: Array):
        drawn = draw_positions(model, tokens)
        kinds: Any = model.apply(variables, tokens, drawn, method="attention")
        return prefix_matching(kinds["decoder"].weights, tokens)

    @jax.jit
    def nats(variables: Variables, texts: Texts):
        logits = logits_of(model, variables, texts.tokens)
        sums = jax.vmap(cross_entropy, in_axes=1)(logits, texts.targets, texts.is_counted)
        return sums.total / sums.count

    twice, held_out = _twice(config, source.vocabulary), rows()

    def measured(variables: Variables, own: ConfigDict):
        scores = np.asarray(whole(matching(variables, everywhere(twice, variables))))
        by_token = np.asarray(whole(nats(variables, everywhere(held_out, variables))), np.float64)
        return {**measure(variables, own), "induction": {**_by_head(scores), "in_context_gain": gain_of(by_token)}}

    return measured


def _by_head(scores: Float[np.ndarray, "layers heads"]) -> dict[str, Any]:
    """Prefix-matching scores of every head, and of the best of each layer and of all."""
    layers = {f"layer_{index + 1}": heads for index, heads in enumerate(scores)}
    return {
        "prefix": {
            layer: {f"head_{index + 1}": float(score) for index, score in enumerate(heads)}
            for layer, heads in layers.items()
        },
        "best_of": {layer: float(heads.max()) for layer, heads in layers.items()},
        "prefix_best": float(scores.max()),
    }


def _twice(config: ConfigDict, vocabulary: int) -> Int[Array, "rows length"]:
    """Random tokens that repeat once, in which prefixes are matched; the same for every model of a vocabulary."""
    keys = jax.random.split(jax.random.fold_in(jax.random.key(config.data.seed), HELD_OUT), config.data.rows)
    period = config.data.length // 2
    return jax.vmap(lambda key: repeated(key, period, 2 * period, vocabulary))(keys)


def _rows(key: Array, rows: int, shortest: int, length: int, vocabulary: int) -> Int[Array, "rows length+1"]:
    """Rows with one more token than a model reads, for the last target."""
    key_periods, key_tokens = jax.random.split(key)
    periods = jax.random.randint(key_periods, (rows,), shortest, length // 2 + 1)
    draw = functools.partial(repeated, length=length + 1, vocabulary=vocabulary)
    return jax.vmap(draw)(jax.random.split(key_tokens, rows), periods)


def _loss_of(texts: Texts, model: LanguageModel) -> Measure:
    @jax.jit
    def loss(variables: Variables, texts: Texts):
        return cross_entropy(logits_of(model, variables, texts.tokens), texts.targets).mean()

    def measure(variables: Variables, own: ConfigDict):
        del own
        return {"validation": {"loss": float(whole(loss(variables, everywhere(texts, variables))))}}

    return measure
