"""A translation model's compiled programs: its loss, its translations, its attention."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from attention_jax.data.tokenizers import BOS, EOS, PAD
from attention_jax.decoding.beam import beam_search
from attention_jax.decoding.ensemble import join_caches, join_steps, mean_log_probs
from attention_jax.decoding.greedy import greedy
from attention_jax.decoding.sampling import sample
from attention_jax.errors import UserError
from attention_jax.models.transformer import Transformer
from attention_jax.modules.attention import NO_EDITS
from attention_jax.ops.losses import cross_entropy
from attention_jax.tasks.choosing import require_drawing
from attention_jax.tasks.translation.model import lengths_of, require_beams, shifted
from attention_jax.training.state import Variables

Members = tuple[Variables, ...]  # the models that translate together: one, or several with averaged probabilities
ENDS = {"bos": BOS, "eos": EOS, "pad": PAD}


class Translator(NamedTuple):
    """A model with its compiled programs: functions of members, a batch, and what is changed of members' heads."""

    model: nn.Module
    loss: Any  # → Sums of every row, without dropout or smoothing
    translate: Any  # → the ids of one translation each
    n_best: Any  # → Hypotheses, as many as beams
    alignment: Any  # → weights [B, T, S] of `config.evaluate.alignment_layer`; None without attention
    weights: Any  # → those of every layer and head, by kind: [B, layers, heads, Q, K]
    beams: int  # hypotheses of a sentence that a search holds


def translator(model: nn.Module, config: ConfigDict) -> Translator:
    """The model's programs: loss and attention, teacher forced, and translation as `config.evaluate` says.

    The alignment is the mean over the heads of one decoder layer. A translation has at most `config.data.max_length`
    words, or as many as its padded source if that is longer.
    """
    alignment_layer = config.evaluate.alignment_layer

    def decode(search, members, batch, edits=NO_EDITS):
        source = batch["source"]
        lengths, longest = lengths_of(source), max(config.data.max_length, source.shape[-1])
        memories = [model.apply(variables, source, lengths, None, edits, method="encode") for variables in members]
        caches: Any = [
            model.apply(variables, memory, longest, method="init_cache")
            for variables, memory in zip(members, memories, strict=True)
        ]
        steps: Any = [functools.partial(model.apply, each, edits=edits, method="step") for each in members]
        return search(join_steps(steps), join_caches(caches), lengths == 0, longest, batch["index"])

    def weights(members, batch, edits=NO_EDITS):
        arguments = (batch["source"], lengths_of(batch["source"]), shifted(batch["target"]), edits)
        of_members: list[Any] = [model.apply(variables, *arguments, method="attention") for variables in members]
        kinds = [{kind: heads.weights for kind, heads in member.items()} for member in of_members]
        return jax.tree.map(lambda *arrays: sum(arrays) / len(arrays), *kinds)

    def alignment(members, batch, edits=NO_EDITS):
        return jnp.mean(weights(members, batch, edits)["cross"][:, alignment_layer], axis=1)

    def evaluation_loss(members, batch, edits=NO_EDITS):
        source, target = batch["source"], batch["target"]
        arguments = (source, lengths_of(source), shifted(target), None, edits)
        logits: list[Any] = [model.apply(variables, *arguments) for variables in members]
        return jax.vmap(cross_entropy)(mean_log_probs(logits), target, target != PAD)

    require_beams(model, max(config.evaluate.beams, config.evaluate.test_beams))
    layers = _attending_layers(model)
    if layers and not -layers <= alignment_layer < layers:
        raise UserError(
            f"config.evaluate.alignment_layer={alignment_layer}: needs {-layers} to {layers - 1}; the decoder has "
            f"{layers}."
        )
    return Translator(
        model,
        loss=jax.jit(evaluation_loss),
        translate=jax.jit(functools.partial(decode, _search(config))),
        n_best=jax.jit(functools.partial(decode, _beam_search(config))),
        alignment=jax.jit(alignment) if layers else None,
        weights=jax.jit(weights),
        beams=config.evaluate.beams,
    )


def _search(config: ConfigDict) -> Callable:
    """The search that `config.evaluate` asks for: (step, cache, is_empty, max_length, indices) → tokens."""
    asked = config.evaluate
    if asked.beams < 1:
        raise UserError(f"config.evaluate.beams={asked.beams}: needs 1 or more.")
    if not 1 <= asked.n_best <= asked.beams:
        raise UserError(f"config.evaluate.n_best={asked.n_best}: needs 1 to config.evaluate.beams={asked.beams}.")
    require_drawing(asked, "evaluate")
    if asked.temperature and asked.beams > 1:
        raise UserError(
            f"config.evaluate.temperature={asked.temperature}: draws words, and config.evaluate.beams={asked.beams} "
            "searches for them. Set temperature=0 or beams=1."
        )
    find_best = _beam_search(config)

    def draw(step, cache, is_empty, longest, indices):
        key = jax.random.key(asked.seed)  # made in this trace: a key from outside may belong to another trace
        keys = jax.vmap(functools.partial(jax.random.fold_in, key))(indices)
        kept = {"temperature": asked.temperature, "top_k": asked.top_k, "top_p": asked.top_p}
        return sample(step, cache, is_empty, longest, keys, **kept, **ENDS)

    def search(*arguments):
        return find_best(*arguments).tokens[:, 0]

    def take_likeliest(step, cache, is_empty, longest, indices):
        del indices
        return greedy(step, cache, is_empty, longest, **ENDS)

    return draw if asked.temperature else search if asked.beams > 1 else take_likeliest


def _beam_search(config: ConfigDict) -> Callable:
    beams, length_penalty = config.evaluate.beams, config.evaluate.length_penalty

    def search(step, cache, is_empty, longest, indices):
        del indices
        return beam_search(step, cache, is_empty, longest, beams=beams, length_penalty=length_penalty, **ENDS)

    return search


def _attending_layers(model: nn.Module) -> int:
    """How many decoder layers attend to the source."""
    return model.decoder_layers if isinstance(model, Transformer) else int(model.attends != "never")
