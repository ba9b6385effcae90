"""A trained language model's run, opened: the object that `attention_jax.load` gives."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int
from ml_collections import ConfigDict

from attention_jax.data.text import Text
from attention_jax.errors import UserError
from attention_jax.models.language_model import LanguageModel
from attention_jax.modules.attention import NO_EDITS, Edits, Heads
from attention_jax.ops.losses import Sums, cross_entropy
from attention_jax.ops.statistics import Statistics
from attention_jax.tasks.language_model import prompts
from attention_jax.tasks.language_model.model import draw_positions
from attention_jax.tasks.language_model.session import Session
from attention_jax.tasks.opened import Opened, Removed, require_kind, sizes_of, without_each_head
from attention_jax.training.state import Variables

KIND = "decoder"  # of attention: the only one
Tokens = Int[np.ndarray, "texts t"]


@dataclasses.dataclass(frozen=True)
class OpenedLanguageModel(Opened):
    """A trained language model: `config`, `session`, `which`, `seed`, `folder`, `result`, `metrics()`, and those below.

    Texts are rows of tokens. `edits` change heads: `{"decoder": Edit(gate=ones[layers, heads])}`, with layers as the
    first axis of every array.
    """

    session: Session

    @property
    def model(self) -> LanguageModel:
        """The Linen module, with the encoding of evaluation; `run.model.apply(run.variables, tokens)` calls it."""
        return self.session.evaluated_model

    @functools.cached_property
    def variables(self) -> Variables:
        """Parameters, and the moments of batch norms if there are any."""
        return self.restored(self.session.init, self.session.source.tokenizer_digest)

    @property
    def text(self) -> Text:
        """The text of training: `splits`, `vocabulary`, `tokenizer`. Raises UserError for a run without a text."""
        if self.session.source.text is None:
            raise UserError(f"{self.folder}: was trained on no text with a tokenizer; `example` gives rows of tokens.")
        return self.session.source.text

    def tokens(self, text: str) -> Tokens:
        """A text as one row of tokens. Raises UserError for characters that are not in the training text."""
        return np.asarray(prompts.known(self.text, text, "the text"), np.int32)[None]

    def generate(self, prompt: str = "", edits: Edits = NO_EDITS, **asked: Any) -> str:
        """A prompt and the text that follows it; `asked` are keys of `config.generate`, such as `tokens=100`.

        Raises UserError for another key, and for a run without a text or without `config.generate`; ValueError for
        edits that are not gates.
        """
        if "generate" not in self.config:
            raise UserError(f"{self.folder}: its config has no section generate, which says how a text is written.")
        config = ConfigDict(self.config.to_dict())
        if unknown := [key for key in asked if key not in config.generate]:
            raise UserError(f"generate({unknown[0]}=…): no such key. Choose of {', '.join(config.generate)}.")
        config.generate.update(asked)
        prompts.require_usable(config.generate)
        _ = self.text
        return "".join(prompts.generate(self.session, config, self.variables, prompt, self.edited(edits)))

    def example(self, length: int) -> Tokens:
        """A text that is not in the training data, of one of the lengths that are measured."""
        return np.asarray(self.session.source.example(self.config, length))

    def scores(self, tokens: Tokens, edits: Edits = NO_EDITS) -> Float[np.ndarray, "texts t-1"]:
        """Nats of every token after the first. Raises UserError for what are no rows of two or more of its tokens."""
        return np.asarray(self._nats(self.variables, jnp.asarray(self._rows(tokens, 2)), self.edited(edits)))

    def attention(self, tokens: Tokens, edits: Edits = NO_EDITS) -> Heads:
        """What each head does: weights [texts, layers, heads, T, T], outputs [texts, layers, heads, T, F].

        Raises ValueError for a mixer that does not attend.
        """
        return jax.device_get(self._attention(self.variables, jnp.asarray(self._rows(tokens)), self.edited(edits)))

    def statistics(
        self, tokens: Tokens, edits: Edits = NO_EDITS, top: int = 4, parts: Tokens | None = None, num_parts: int = 0
    ) -> Statistics:
        """What each head's weights say, [texts, layers, heads, T, …], without maps of them: for texts of any length.

        `top`, `parts` and `num_parts` are those of `ops.statistics.Summary`. Raises ValueError for a mixer that does
        not attend.
        """
        asked = self.variables, jnp.asarray(self._rows(tokens)), self.edited(edits), parts
        return jax.device_get(self._statistics(*asked, top=top, num_parts=num_parts))

    def without_each_head(self, tokens: Tokens) -> Removed:
        """The loss of texts without each head, beside the whole model's."""
        layers, heads = require_kind(self.sizes, KIND)

        def loss(variables, batch, edits):
            nats = self._nats(variables, batch["tokens"], edits)
            return Sums(nats.sum(-1), jnp.full(len(nats), nats.shape[-1], jnp.float32))

        batches = [(np.arange(len(tokens)), {"tokens": self._rows(tokens, 2)})]
        return without_each_head(loss, self.variables, batches, KIND, layers, heads)

    def _rows(self, tokens: Any, least: int = 1) -> Tokens:
        """The tokens, [texts, t]. Raises UserError for other shapes, fewer than so many, and what are no tokens."""
        rows, known = np.asarray(tokens), self.model.vocabulary
        if rows.ndim != 2 or not rows.shape[0] or rows.shape[1] < least or rows.dtype.kind not in "iu":
            raise UserError(
                f"tokens: are of shape {rows.shape} and dtype {rows.dtype}; whole numbers [texts, t] are needed, with "
                f"a text or more of {least} or more: run.tokens(TEXT) makes them."
            )
        if rows.min() < 0 or rows.max() >= known:
            raise UserError(f"tokens: are {rows.min()} to {rows.max()}, and the model has 0 to {known - 1}.")
        return rows

    @functools.cached_property
    def sizes(self) -> dict[str, tuple[int, int]]:
        """How many layers and heads attention has, of the one kind, "decoder"."""
        return sizes_of(self.model, self.variables, np.ones((1, 1), np.int32))

    @functools.cached_property
    def _nats(self) -> Any:
        model, of_token = self.model, jax.vmap(jax.vmap(cross_entropy))

        def nats(variables: Variables, tokens: Any, edits: Edits) -> Any:
            read, written = tokens[:, :-1], tokens[:, 1:]
            logits: Any = model.apply(variables, read, _positions(model, read), edits=edits)
            return of_token(logits, written, jnp.ones(written.shape, bool)).total

        return jax.jit(nats)

    @functools.cached_property
    def _attention(self) -> Any:
        model = self.model

        def attention(variables: Variables, tokens: Any, edits: Edits) -> Heads:
            by_kind: Any = model.apply(variables, tokens, _positions(model, tokens), edits=edits, method="attention")
            return by_kind[KIND]

        return jax.jit(attention)

    @functools.cached_property
    def _statistics(self) -> Any:
        model = self.model

        def statistics(variables: Variables, tokens: Any, edits: Edits, parts: Any, **counts: int) -> Statistics:
            asked = {"edits": edits, "parts": parts, **counts, "method": "statistics"}
            by_kind: Any = model.apply(variables, tokens, _positions(model, tokens), **asked)
            return by_kind[KIND]

        return jax.jit(statistics, static_argnames=("top", "num_parts"))


def _positions(model: LanguageModel, tokens: Any) -> Any:
    """The positions, if the encoding draws them; a row always gets the same ones."""
    return draw_positions(model, jnp.asarray(tokens))
