"""A translation model with its compiled programs, and what they say of many sentences."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from attention_jax.data.batching import NO_ROW, in_order, make_buckets
from attention_jax.data.config import DataConfig
from attention_jax.data.corpus import Corpus, Reference, Split
from attention_jax.data.sentences import Sentences
from attention_jax.data.tokenizers import BOS, EOS, PAD, SPLITS, Tokenizer, split_words
from attention_jax.decoding.beam import beam_search
from attention_jax.decoding.ensemble import join_caches, join_steps, mean_log_probs
from attention_jax.decoding.greedy import greedy
from attention_jax.decoding.sampling import sample
from attention_jax.errors import UserError
from attention_jax.evaluation.alignment import agreement, alignment_error_rate, coverage, entropy, monotonicity
from attention_jax.evaluation.bleu import bleu_statistics
from attention_jax.evaluation.translation import (
    Batches,
    Splits,
    bleu_by_length,
    gather_rows,
    length_groups,
    losses,
    perplexity_by_length,
    row_losses,
    score_translations,
    spaced,
)
from attention_jax.models import TRANSLATORS
from attention_jax.ops.dropout import Dropout
from attention_jax.ops.losses import Sums, cross_entropy
from attention_jax.training.state import Variables

Members = tuple[Variables, ...]  # what translates together: one model, or several whose probabilities are averaged

EVALUATION_TOKENS = 4096  # padded tokens of a side in a batch that is only measured
SAMPLED = 512  # training pairs that are measured
ENDS = {"bos": BOS, "eos": EOS, "pad": PAD}


class Translator(NamedTuple):
    """A model with its compiled programs."""

    model: nn.Module
    loss: Any  # (members, batch) → Sums of every row, without dropout or smoothing
    translate: Any  # (members, batch) → the ids of one translation each
    n_best: Any  # (members, batch) → Hypotheses, as many as beams
    alignment: Any  # (members, batch) → weights [B, T, S] of `config.evaluate.alignment_layer`; None without attention
    weights: Any  # (members, batch) → those of every layer and head, by kind: [B, layers, heads, Q, K]


class Trained(NamedTuple):
    """Members, their programs, and the corpus that they were trained on."""

    programs: Translator
    members: Members
    corpus: Corpus
    data: DataConfig


def build(config: ConfigDict, source_vocabulary: int, target_vocabulary: int) -> nn.Module:
    """The model that `config.model` names."""
    if config.model.name not in TRANSLATORS:
        raise UserError(f"config.model.name={config.model.name!r}: choose one of {', '.join(TRANSLATORS)}.")
    kwargs: dict[str, Any] = {name: _dtype(config, name) for name in ("dtype", "param_dtype")}
    kwargs |= {"source_vocabulary": source_vocabulary, "target_vocabulary": target_vocabulary, **config.model.kwargs}
    if kwargs.get("shared") == "all" and not config.data.joint_vocabulary:
        raise UserError(
            "config.model.kwargs.shared='all' needs one vocabulary of both languages: set "
            "config.data.joint_vocabulary=True, or shared='target'."
        )
    try:
        model = TRANSLATORS[config.model.name](**kwargs)
    except (TypeError, ValueError) as error:
        raise UserError(f"config.model.kwargs: {error}") from None
    _require_room(model, config.data.buckets[-1])
    return model


def init(model: nn.Module, key: jax.Array) -> Variables:
    """Fresh variables."""
    tokens = jnp.zeros((1, 1), jnp.int32)
    return dict(model.init(key, tokens, jnp.ones(1, jnp.int32), tokens))


def loss(
    model: nn.Module, variables: Variables, batch: Mapping, dropout: Dropout | None, label_smoothing
) -> tuple[Sums, Variables]:
    """Teacher-forced cross entropy of a batch, in nats, with its target tokens; and the collections it changed."""
    source, target = batch["source"], batch["target"]
    others = [name for name in variables if name != "params"]
    logits, changed = model.apply(variables, source, _lengths(source), _shifted(target), dropout, mutable=others)
    return cross_entropy(logits, target, target != PAD, label_smoothing), dict(changed)


def translator(model: nn.Module, config: ConfigDict) -> Translator:
    """The model's programs: loss, translation as `config.evaluate` says, and attention, teacher forced.

    The alignment is the mean over the heads of one decoder layer. A translation has up to `config.data.max_length`
    words, or as many as a longer source.
    """
    alignment_layer = config.evaluate.alignment_layer

    def decode(search, members, batch):
        source = batch["source"]
        lengths, longest = _lengths(source), max(config.data.max_length, source.shape[-1])
        memories = [model.apply(variables, source, lengths, method="encode") for variables in members]
        caches: Any = [
            model.apply(variables, memory, longest, method="init_cache")
            for variables, memory in zip(members, memories, strict=True)
        ]
        steps: Any = [functools.partial(model.apply, variables, method="step") for variables in members]
        return search(join_steps(steps), join_caches(caches), lengths == 0, longest, batch["place"])

    def weights(members, batch):
        arguments = (batch["source"], _lengths(batch["source"]), _shifted(batch["target"]))
        found: list[Any] = [model.apply(variables, *arguments, method="attention") for variables in members]
        return jax.tree.map(lambda *kinds: sum(kinds) / len(kinds), *found)

    def alignment(members, batch):
        return jnp.mean(weights(members, batch)["cross"][:, alignment_layer], axis=1)

    def evaluation_loss(members, batch):
        source, target = batch["source"], batch["target"]
        found: list[Any] = [model.apply(v, source, _lengths(source), _shifted(target)) for v in members]
        return jax.vmap(cross_entropy)(mean_log_probs(found), target, target != PAD)

    layers = _attending_layers(model)
    if layers and not -layers <= alignment_layer < layers:
        raise UserError(f"config.evaluate.alignment_layer={alignment_layer}: the decoder has {layers}.")
    return Translator(
        model,
        loss=jax.jit(evaluation_loss),
        translate=jax.jit(functools.partial(decode, _search(config))),
        n_best=jax.jit(functools.partial(decode, _beam_search(config))),
        alignment=jax.jit(alignment) if layers else None,
        weights=jax.jit(weights),
    )


def _search(config: ConfigDict) -> Callable:
    """How `config.evaluate` finds a translation: (step, cache, is_empty, max_length, places) → tokens."""
    asked = config.evaluate
    if not 1 <= asked.n_best <= asked.beams:
        raise UserError(
            f"config.evaluate: beams={asked.beams} and n_best={asked.n_best} need 1 or more, and n_best at most beams."
        )
    if asked.temperature < 0 or asked.top_k < 0 or not 0 < asked.top_p <= 1:
        raise UserError(
            f"config.evaluate: temperature={asked.temperature} and top_k={asked.top_k} need 0 or more, and "
            f"top_p={asked.top_p} more than 0 and at most 1."
        )
    if asked.temperature and asked.beams > 1:
        raise UserError("config.evaluate: temperature draws words and beams search for them: choose one of the two.")
    if not asked.temperature and (asked.top_k or asked.top_p < 1):
        raise UserError(
            f"config.evaluate: top_k={asked.top_k} and top_p={asked.top_p} are of words that are drawn: "
            "set temperature to more than 0."
        )
    key, find_best = jax.random.key(asked.seed), _beam_search(config)

    def draw(step, cache, is_empty, longest, places):
        keys = jax.vmap(functools.partial(jax.random.fold_in, key))(places)
        kept = {"temperature": asked.temperature, "top_k": asked.top_k, "top_p": asked.top_p}
        return sample(step, cache, is_empty, longest, keys, **kept, **ENDS)

    def search(*arguments):
        return find_best(*arguments).tokens[:, 0]

    def take_likeliest(step, cache, is_empty, longest, places):
        del places
        return greedy(step, cache, is_empty, longest, **ENDS)

    return draw if asked.temperature else search if asked.beams > 1 else take_likeliest


def _beam_search(config: ConfigDict) -> Callable:
    beams, length_penalty = config.evaluate.beams, config.evaluate.length_penalty

    def search(step, cache, is_empty, longest, places):
        del places
        return beam_search(step, cache, is_empty, longest, beams=beams, length_penalty=length_penalty, **ENDS)

    return search


class Measured(NamedTuple):
    """What was measured of a split, and the translations that it was measured on."""

    numbers: dict[str, Any]
    hypotheses: list[str]


def measure_split(trained: Trained, split: Split, config: ConfigDict) -> Measured:
    """Loss over a split's pairs and BLEU over its sentences, by their length too; how attention aligns them."""
    programs, members, splits = trained.programs, trained.members, bleu_tokens(config)
    sources, references = [r.source for r in split.references], [r.targets for r in split.references]
    pairs = _batches(trained, split.source, split.target)
    is_cut = (split.target.tokens[split.target.offsets[1:] - 1] != EOS).any()
    words = 0 if is_cut else sum(len(split_words(text)) + 1 for group in references for text in group)
    hypotheses = translate_texts(trained, sources)
    rows, lengths = row_losses(functools.partial(programs.loss, members), pairs), [*map(_count_words, sources)]
    groups = length_groups(lengths)
    numbers = {
        **losses(rows, words),
        **score_translations(hypotheses, references, splits),
        "bleu_by_length": bleu_by_length(lengths, hypotheses, references, groups, splits),
        "perplexity_by_length": perplexity_by_length(split.source_words, rows, groups),
        **(_alignment(align(trained, split.source, split.target), split) if programs.alignment else {}),
    }
    return Measured(numbers, hypotheses)


def training_nll(trained: Trained) -> float:
    """Nats a target token of a fixed sample of the training pairs, evenly spread, without dropout or smoothing.

    It compares models whatever their objective, as the training loss does not.
    """
    split = trained.corpus.splits["train"]
    places = np.linspace(0, len(split.source) - 1, min(SAMPLED, len(split.source))).astype(int)
    sides = (Sentences.join(side[place] for place in places) for side in (split.source, split.target))
    program = functools.partial(trained.programs.loss, trained.members)
    return losses(row_losses(program, _batches(trained, *sides)), 0)["loss"]


def sentence_scores(split: Split, hypotheses: Sequence[str], config: ConfigDict) -> dict[str, np.ndarray]:
    """What `bleu` and `bleu_13a` are made of, a row a sentence."""
    references, splits = [r.targets for r in split.references], bleu_tokens(config)
    rows = {"bleu_13a": bleu_statistics(hypotheses, references)}
    if splits is None:
        return rows | {"bleu": rows["bleu_13a"]}
    return rows | {"bleu": bleu_statistics(*spaced(hypotheses, references, splits[1]), tokenize="none")}


def _alignment(weights: Sequence[np.ndarray], split: Split) -> dict[str, float]:
    """How attention aligns words, ends left out; against the true alignments where the corpus has them.

    A local window's weights need not sum to one: here they do.
    """
    weights = [matrix[:-1] / np.maximum(matrix[:-1].sum(-1, keepdims=True), 1e-30) for matrix in weights]
    found = {"monotonicity": monotonicity(weights), "coverage": coverage(weights), "entropy": entropy(weights)}
    alignments = [reference.alignment for reference in split.references if reference.alignment is not None]
    if [len(alignment) for alignment in alignments] == [len(matrix) for matrix in weights]:
        found["alignment_agreement"] = agreement(weights, alignments)
        found["alignment_error_rate"] = alignment_error_rate(weights, alignments)
    return found


def bleu_tokens(config: ConfigDict) -> Splits:
    """The tokens that `bleu` is counted on, by name; None for sacreBLEU's own.

    Raises UserError where they are not known, or their library is not installed.
    """
    name = config.evaluate.bleu_tokens
    if name == "13a":
        return None
    if name not in SPLITS:
        raise UserError(f"config.evaluate.bleu_tokens={name!r}: choose one of 13a, {', '.join(SPLITS)}.")
    return name, SPLITS[name].split_of(config.data.languages[1])


def split_of_files(trained: Trained, sources: Sequence[str], targets: Sequence[str]) -> Split:
    """Sentences and their translations, which were not imported, as a split."""
    corpus = trained.corpus
    references = [Reference(*pair, None) for pair in zip(sources, ([target] for target in targets), strict=True)]
    words = [*map(_count_words, sources)]
    return Split(encode(corpus.source, sources), encode(corpus.target, targets), {}, references, words)


def _count_words(text: str) -> int:
    return len(split_words(text))


def translate_texts(trained: Trained, texts: Sequence[str]) -> list[str]:
    """The translation of each text, whole, however the training pairs were cut."""
    sources = encode(trained.corpus.source, texts)
    return [trained.corpus.target.decode(ids) for ids in translate(trained, sources)]


def translate(trained: Trained, sources: Sentences, numbers: np.ndarray | None = None) -> list[list[int]]:
    """Translations, as ids with the end where one was written, in the order of the sources.

    What is drawn goes by their numbers.
    """
    numbers = np.arange(len(sources)) if numbers is None else numbers

    def program(batch):
        place = np.where(batch["place"] >= 0, numbers[batch["place"]], NO_ROW)
        return trained.programs.translate(trained.members, batch | {"place": place})

    return [row[row != PAD].tolist() for row in gather_rows(program, _batches(trained, sources, sources))]


def translate_n_best(trained: Trained, sources: Sentences, count: int) -> list[list[tuple[float, list[int]]]]:
    """The `count` best translations of every source with their scores, in nats over the length penalty, best first."""
    found: dict[int, list[tuple[float, list[int]]]] = {}
    for places, batch in _batches(trained, sources, sources):
        tokens, scores = jax.device_get(trained.programs.n_best(trained.members, batch))
        for row, place in enumerate(places.tolist()):
            ids = (hypothesis[hypothesis != PAD].tolist() for hypothesis in tokens[row, :count])
            found[place] = list(zip(scores[row, :count].tolist(), ids, strict=True))
    return [found[place] for place in sorted(found)]


def align(trained: Trained, source: Sentences, target: Sentences) -> list[np.ndarray]:
    """The alignment of every pair, teacher forced: `[target words, source words]`, ends included."""
    programs, members = trained.programs, trained.members
    rows = gather_rows(lambda batch: programs.alignment(members, batch), _batches(trained, source, target))
    return [row[:t, :s] for row, t, s in zip(rows, target.lengths, source.lengths, strict=True)]


def attention(trained: Trained, source: Sentences, target: Sentences) -> list[dict[str, np.ndarray]]:
    """Every layer's and head's weights of every pair, teacher forced, by kind: `[layers, heads, queries, keys]`."""
    programs, members = trained.programs, trained.members
    found: dict[int, dict[str, np.ndarray]] = {}
    for places, batch in _batches(trained, source, target):
        kinds = jax.device_get(programs.weights(members, batch))
        for row, place in enumerate(places.tolist()):
            t, s = len(target[place]), len(source[place])
            sizes = {"encoder": (s, s), "decoder": (t, t), "cross": (t, s)}
            found[place] = {kind: kinds[kind][row, :, :, : sizes[kind][0], : sizes[kind][1]] for kind in kinds}
    return [found[place] for place in sorted(found)]


def encode(tokenizer: Tokenizer, texts: Iterable[str]) -> Sentences:
    """Each text's ids with its end."""
    return Sentences.join([*tokenizer.encode(text), EOS] for text in texts)


def _batches(trained: Trained, source: Sentences, target: Sentences) -> Batches:
    """Every pair once, in few shapes, so that little is compiled: each twice as long as the one before."""
    longest = int(max(source.lengths.max(initial=0), target.lengths.max(initial=0)))
    boundaries, last = [trained.data.buckets[0]], trained.data.buckets[-1]
    while boundaries[-1] < longest:
        boundaries.append(min(2 * boundaries[-1], last) if boundaries[-1] < last else 2 * boundaries[-1])
    room = trained.programs.model.room
    if room is not None and room >= longest:
        boundaries[-1] = min(boundaries[-1], room)
    _require_room(trained.programs.model, boundaries[-1])
    tokens = min(EVALUATION_TOKENS, len(source) * boundaries[-1])  # no rows to fill up for a sentence alone
    return in_order(make_buckets(source, target, boundaries, tokens))


def _require_room(model: nn.Module, length: int) -> None:
    if model.room is not None and model.room < length:
        raise UserError(
            f"config.model.kwargs.max_length={model.room}: there is no room for texts padded to {length} words. "
            "Train with more."
        )


def _attending_layers(model: nn.Module) -> int:
    """How many decoder layers attend to the source."""
    tokens, lengths = jnp.zeros((1, 1), jnp.int32), jnp.ones(1, jnp.int32)
    found: Any = jax.eval_shape(
        lambda key: model.init_with_output(key, tokens, lengths, tokens, method="attention")[0], jax.random.key(0)
    )
    return found["cross"].shape[1] if "cross" in found else 0


def _dtype(config: ConfigDict, name: str) -> jnp.dtype:
    if config.precision[name] not in ("float32", "bfloat16"):
        raise UserError(f"config.precision.{name}={config.precision[name]!r}: choose float32 or bfloat16.")
    return jnp.dtype(config.precision[name])


def _lengths(tokens):
    return jnp.sum(tokens != PAD, axis=-1)


def _shifted(target):
    """What the decoder reads before each word of the target: never the end, which no word follows."""
    read = jnp.where(target == EOS, PAD, target)
    return jnp.concatenate([jnp.full_like(read[:, :1], BOS), read[:, :-1]], axis=1)
