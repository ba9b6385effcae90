"""The heads of a language model's run on a text."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from attention_jax.data.windows import Rows
from attention_jax.errors import UserError
from attention_jax.evaluation.translation import Batch, Batches
from attention_jax.models.language_model import KIND, LanguageModel
from attention_jax.modules.attention import Edits
from attention_jax.ops.losses import Sums, cross_entropy
from attention_jax.reports.heads_page import Written
from attention_jax.tasks.heads.gating import Sizes, edits_of
from attention_jax.tasks.heads.portrait import Portrait
from attention_jax.tasks.heads.roles import looks_of
from attention_jax.tasks.heads.session import Looks, Session
from attention_jax.tasks.language_model.model import draw_positions
from attention_jax.tasks.language_model.session import Session as Opened
from attention_jax.tasks.language_model.stream import OPENERS
from attention_jax.tasks.opened import sizes_of
from attention_jax.training.description import Description
from attention_jax.training.state import Variables

AT_ONCE = 16  # rows of a batch
SHOWN = 32  # tokens of the window that has a page


class LanguageModelSession(Session):
    """A run of a language model, measured on held-out windows, `config.sentences` of them for each purpose.

    The split that orders heads is that of their first half, the one that they are measured on that of the second.
    """

    @functools.cached_property
    def opened(self) -> Opened:
        """The run's text, model and programs."""
        return Opened(self.of_run, self.path / "data", OPENERS)

    @property
    def model(self) -> LanguageModel:
        return self.opened.evaluated_model

    @functools.cached_property
    def variables(self) -> list[Variables]:
        return self.opened.variables(self.of_run, self.path)

    @functools.cached_property
    def sizes(self) -> Sizes:
        return sizes_of(self.model, self.variables[0], np.ones((1, 1), np.int32))

    def loss(self, variables: Variables, batch: Batch, edits: Edits) -> Sums:
        logits: Any = self.model.apply(variables, batch["tokens"], self._positions(batch["tokens"]), edits=edits)
        return jax.vmap(cross_entropy)(logits, jnp.asarray(batch["targets"]), jnp.asarray(batch["is_counted"]))

    def batches(self, key: str) -> Batches:
        rows = self.rows(key)
        for first in range(0, len(rows.tokens), AT_ONCE):
            chosen = np.arange(first, min(first + AT_ONCE, len(rows.tokens)))
            yield chosen, {name: getattr(rows, name)[chosen] for name in ("tokens", "targets", "is_counted")}

    @property
    def measured_on(self) -> str:
        return "validation split's windows"

    def bleu(self, seed: int, settings: Iterable[Edits]) -> list[float]:
        return []

    def looks(self, seed: int) -> Looks:
        texts = [batch["tokens"] for _, batch in self.batches("split")]
        found = [self.opened.attention(self.variables[seed], tokens, self._positions(tokens)) for tokens in texts]
        return looks_of([{KIND: of_row} for weights in found for of_row in np.asarray(weights)], self.sizes)

    def chances(self) -> dict[str, float]:
        return {}

    def portrait(self, gates: np.ndarray) -> Portrait:
        """Of the first tokens of a held-out window: the words after each are given, and their probabilities told."""
        rows, text = self.rows("split"), self.opened.source.text
        tokens, targets = (side[:1, :SHOWN] for side in (rows.tokens, rows.targets))
        assert text is not None
        read, given = (text.tokenizer.words(side[0]) for side in (tokens, targets))
        maps = self.opened.attention(self.variables[0], tokens, self._positions(tokens))
        likely = (self.probabilities(self.variables[0], tokens, targets, row)[0] for row in gates)
        written = [Written(given, np.asarray(found).tolist()) for found in likely]
        return Portrait("".join(read), {KIND: (given, read)}, {KIND: np.asarray(maps)[0]}, written)

    @functools.cached_property
    def probabilities(self) -> Callable[..., Array]:
        """The probability of each target after its tokens, under gates."""

        def each(variables, tokens, targets, gates):
            logits: Any = self.model.apply(
                variables, tokens, self._positions(tokens), edits=edits_of(gates, self.sizes)
            )
            return jnp.take_along_axis(jax.nn.softmax(logits), targets[..., None], axis=-1)[..., 0]

        return jax.jit(each)

    @property
    def description(self) -> Description:
        return Opened(self.of_run, None, OPENERS).description

    def _positions(self, tokens: Any) -> Any:
        """Those that the encoding draws, if it does."""
        return draw_positions(self.model, jnp.asarray(tokens))

    def rows(self, key: str) -> Rows:
        """Held-out windows of the trained length. Raises UserError where there are too few."""
        source, count = self.opened.source, self.config.sentences
        assert source.held_out is not None
        found = source.held_out(2 * count, source.trained)
        whole = np.flatnonzero(found.is_counted.all(axis=-1))
        if len(whole) < 2:
            raise UserError(f"config.run={self.config.run!r}: its held-out text is shorter than two windows.")
        half = len(whole) // 2
        chosen = whole[half:] if key == "split" else whole[:half]
        return Rows(found.tokens[chosen], found.targets[chosen], found.is_counted[chosen])
