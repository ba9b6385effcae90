"""Which heads carry what one word changes: outputs of one sentence's run put into another's (activation patching)."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from attention_jax.data.sentences import Sentences
from attention_jax.data.sources import Pair
from attention_jax.data.tokenizers import Tokenizer
from attention_jax.errors import UserError
from attention_jax.evaluation.statistics import RESAMPLES, resampled_sums, two_level_interval
from attention_jax.modules.attention import NO_EDITS, Edit, Edits
from attention_jax.tasks.heads.gating import AT_ONCE, Sizes, by_kind, count
from attention_jax.tasks.translation.model import lengths_of, shifted
from attention_jax.tasks.translation.translating import encode
from attention_jax.training.state import Variables


class Couples(NamedTuple):
    """Sentences that differ in one word, and the first word in which their translations differ.

    `inputs` are what the decoder reads of the clean sentence's translation; up to `position` the changed one's is the
    same.
    """

    clean: Int[np.ndarray, "couples s"]
    changed: Int[np.ndarray, "couples s"]
    inputs: Int[np.ndarray, "couples t"]
    position: Int[np.ndarray, " couples"]
    word: Int[np.ndarray, " couples"]  # that the clean translation has there
    changed_word: Int[np.ndarray, " couples"]


class Carried(NamedTuple):
    """The logit difference of the changed word and the clean one, by which each couple's moved, in nats.

    `whole` is by the changed sentence; `patched` by single heads' outputs of it, all heads in a row, then by all heads
    of each kind together.
    """

    whole: Float[np.ndarray, " couples"]
    patched: Float[np.ndarray, "heads+kinds couples"]
    is_right: Bool[np.ndarray, " couples"]  # whether the likelier of the two words is each sentence's own

    def of_heads(self, order: Sequence[int]) -> "Carried":
        """The same with single heads in another order."""
        rows = [*order, *range(len(order), len(self.patched))]
        return self._replace(patched=self.patched[rows])


def couples_of(pairs: Sequence[tuple[Pair, Pair]], source: Tokenizer, target: Tokenizer) -> Couples:
    """Couples as tokens; those that the vocabularies make equal, or of other lengths, are left out.

    Raises UserError where none is left.
    """
    kept = []
    for both in pairs:
        clean, changed = (encode(source, [pair.source])[0] for pair in both)
        told, other = (encode(target, [pair.target])[0] for pair in both)
        differ = [index for index, (a, b) in enumerate(zip(told, other, strict=False)) if a != b]
        if len(clean) == len(changed) and (clean != changed).any() and differ:
            kept.append((clean, changed, told, differ[0], told[differ[0]], other[differ[0]]))
    if not kept:
        raise UserError(
            "the run's vocabulary tells no sentences of the grammar apart. Leave patching out of config.parts."
        )
    *texts, positions, words, others = zip(*kept, strict=True)
    padded, numbers = map(_padded, texts), map(np.array, (positions, words, others))
    return Couples(next(padded), next(padded), np.asarray(shifted(next(padded))), *numbers)


def _padded(side: Sequence[np.ndarray]) -> np.ndarray:
    sentences = Sentences.join(side)
    return sentences.rows(np.arange(len(sentences)), int(sentences.lengths.max()))


def carried(model: nn.Module, sizes: Sizes) -> Callable[[Variables, Couples], Carried]:
    """A function of variables and couples: what heads carry of the change of one word.

    One program puts each head's output of the changed sentence into the clean one's run, at all tokens.
    """
    heads = count(sizes)
    kinds = np.repeat(np.arange(len(sizes)), [layers * of_layer for layers, of_layer in sizes.values()])
    chosen = np.concatenate([np.eye(heads, dtype=bool), kinds[None] == np.arange(len(sizes))[:, None]])

    @jax.jit
    def differences(variables: Variables, couples: Couples) -> tuple[Array, Array, Array]:
        def difference(source: Any, edits: Edits) -> Array:
            found: Any = model.apply(variables, source, lengths_of(source), couples.inputs, None, edits)
            row = jnp.arange(len(source))
            logits = found[row, couples.position]
            return logits[row, couples.changed_word] - logits[row, couples.word]

        asked = couples.changed, lengths_of(couples.changed), couples.inputs
        shown: Any = model.apply(variables, *asked, method="attention")
        outputs = {kind: jnp.moveaxis(of_kind.outputs, 1, 0) for kind, of_kind in shown.items()}

        def patched(row: Array) -> Array:
            parts = by_kind(row, sizes)
            return difference(
                couples.clean, {kind: Edit(replaced=parts[kind], outputs=outputs[kind]) for kind in sizes}
            )

        rows = jax.lax.map(patched, jnp.asarray(chosen), batch_size=AT_ONCE)
        return difference(couples.clean, NO_EDITS), difference(couples.changed, NO_EDITS), rows

    def measured(variables: Variables, couples: Couples) -> Carried:
        clean, changed, rows = (np.asarray(found, np.float64) for found in differences(variables, couples))
        return Carried(changed - clean, rows - clean, (clean < 0) & (changed > 0))

    return measured


def recovered(of_couples: Carried) -> Float[np.ndarray, " heads+kinds"]:
    """The fraction of the change that a patch makes: Σ by the patch / Σ by the changed sentence, over couples."""
    return of_couples.patched.sum(-1) / of_couples.whole.sum()


def recovered_intervals(of_seeds: Sequence[Carried]) -> list[tuple[float, float, float]]:
    """The mean of `recovered` over seeds, with 95% intervals over both seeds and couples."""
    resampled = []
    for seed in of_seeds:
        *patched, whole = resampled_sums(np.concatenate([seed.patched, seed.whole[None]]).T, RESAMPLES).T
        resampled.append(np.array(patched) / whole)
    values, means = np.array([recovered(seed) for seed in of_seeds]), np.mean(resampled, axis=0)
    return [two_level_interval(values[:, index].tolist(), means[index]) for index in range(values.shape[1])]
