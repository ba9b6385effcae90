"""A language model, opened once: its data, the model with its programs, and a run's variables."""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from attention_jax.backends import require_mark
from attention_jax.errors import UserError
from attention_jax.models.language_model import LanguageModel
from attention_jax.models.placement import LAYERS
from attention_jax.tasks.language_model.generating import Generator
from attention_jax.tasks.language_model.measuring import Total, total_of
from attention_jax.tasks.language_model.model import PARTS, build, init, loss, statistics_of
from attention_jax.tasks.language_model.scaling import lines_of_config, scaled_init
from attention_jax.tasks.language_model.source import Measure, Opener, Source
from attention_jax.tasks.needs import counted, held_bytes, in_sight, unseen_flops
from attention_jax.tasks.sections import of_section, tell_unread_dropout
from attention_jax.training.cost import flops
from attention_jax.training.description import Description, description_of, step_of
from attention_jax.training.feeding import shapes_of
from attention_jax.training.parametrization import Lines
from attention_jax.training.placement import Placement
from attention_jax.training.saved import Init, best_variables
from attention_jax.training.state import Variables
from attention_jax.training.step import Loss, passes


@dataclasses.dataclass(frozen=True)
class Session:
    """Everything that a config's language model needs; each part is made once, when it is first asked for.

    `folder` has the data, which is imported there if it is not yet. Without a folder nothing is read, and only shapes
    are right. `openers` are by name; `config.data.source` chooses one, by its name before the colon.
    """

    config: ConfigDict
    folder: Path | None
    openers: Mapping[str, Opener]
    _restored: dict[Path, list[Variables]] = dataclasses.field(default_factory=dict, init=False)

    @functools.cached_property
    def source(self) -> Source:
        """The data of the config. Raises UserError for values that do not fit."""
        name = self.config.data.source.partition(":")[0]
        if name not in self.openers:
            raise UserError(f"config.data.source={self.config.data.source!r}: choose one of {', '.join(self.openers)}.")
        return self.openers[name](self.config, self.folder)

    @functools.cached_property
    def model(self) -> LanguageModel:
        """The model that is trained. Raises UserError if the longest text or packed documents do not fit it."""
        source = self.source
        model = build(self.config, source.vocabulary, source.longest, source.has_segments, source.is_padded)
        self._require_room("config.model", model)
        if self.source.has_segments and not model.layer.mixing.attends:
            raise UserError(
                f"config.model.mixer={model.layer.mixer!r}: reads each row as one text, and rows are packed documents. "
                "Choose --config.data.packing=windows."
            )
        if self.source.has_segments and model.score_room is not None:
            raise UserError(
                f"config.model.score={model.layer.score!r}: scores a key by where it stands in its row, and rows are "
                "packed documents. Choose --config.data.packing=windows."
            )
        return model

    @functools.cached_property
    def evaluated_model(self) -> LanguageModel:
        """The model with the encoding of evaluation: `config.evaluate.positions`, or the trained one if that is empty.

        Raises UserError if the two have different parameters, or if there is no room for the longest text.
        """
        if not self.config.evaluate.positions:
            return self.model
        with of_section("config.evaluate"):
            model = self.model.clone(positions=self.config.evaluate.positions)
        self._require_room("config.evaluate", model)
        shapes = [jax.eval_shape(functools.partial(init, each), jax.random.key(0)) for each in (self.model, model)]
        if jax.tree.map(jnp.shape, shapes[0]) != jax.tree.map(jnp.shape, shapes[1]):
            raise UserError(
                f"config.evaluate.positions={model.positions!r}: has other parameters than the trained "
                f"config.model.positions={self.model.positions!r}. Choose one with the same parameters."
            )
        return model

    def check(self) -> None:
        """Raise UserError for values that do not fit one another."""
        _ = self.evaluated_model, self.lines
        tell_unread_dropout(self.config.optimizer.dropout, self.model.layer.dropout_sites, "config.model")

    @functools.cached_property
    def init(self) -> Init:
        """key → fresh variables. The model is made here, outside of any trace, because a trace's values end with it."""
        return functools.partial(scaled_init, self.model, self.lines)

    @functools.cached_property
    def lines(self) -> Lines:
        """How initial values and rates change with the width. Raises UserError where that is not known."""
        return lines_of_config(self.config, self.model)

    @property
    def placement(self) -> Placement:
        """Where the model's parameters lie."""
        return Placement(LAYERS)

    @functools.cached_property
    def loss(self) -> Loss:
        """The loss of a training step, with the label smoothing of its dynamic values."""
        return self._loss_of(self.model)

    def _loss_of(self, model: LanguageModel) -> Loss:
        texts = self.source.texts

        def of_batch(variables, batch, dropout, hyper):
            return loss(model, variables, texts(batch, hyper), dropout, hyper["label_smoothing"])

        return of_batch

    @functools.cached_property
    def measure(self) -> Measure:
        """The function that measures a trained model; runs of the same shapes share its compiled programs."""
        return self.source.measure(self.evaluated_model)

    @functools.cached_property
    def measure_so_far(self) -> Measure:
        """The function that measures the model during training."""
        return self.source.measure_so_far(self.model)

    @functools.cached_property
    def total(self) -> Total:
        """The function that sums nats over rows of any text, by the evaluated model."""
        return total_of(self.evaluated_model)

    @functools.cached_property
    def generator(self) -> Generator:
        """The programs that write text."""
        return Generator(self.evaluated_model)

    @functools.cached_property
    def attention(self) -> Any:
        """(variables, tokens, positions) → the weights of every layer and head, compiled."""
        model = self.evaluated_model
        return jax.jit(lambda *arguments: model.apply(*arguments, method="attention")["decoder"].weights)  # type: ignore

    @functools.cached_property
    def statistics(self) -> Any:
        """(variables, texts) → what the weights of every layer and head say, compiled."""
        asked = {"top": self.config.statistics.top, "num_parts": PARTS}
        return jax.jit(functools.partial(statistics_of, self.evaluated_model, **asked))

    def variables(self, config: ConfigDict, run: Path) -> list[Variables]:
        """Each seed's best variables in the folder of a trained run.

        The run's config may differ from this one in dynamic values. Only the latest run's variables are kept.
        """
        if run not in self._restored:
            self._restored.clear()
            vocabulary = self.source.tokenizer_digest
            self._restored[run] = best_variables(config, run, self.init, vocabulary, self.placement)
        return self._restored[run]

    @functools.cached_property
    def description(self) -> Description:
        """Shapes of the parameters and of one step."""
        batch, more = shapes_of(self.source.batches(0, 0, 1)), self.source.traced(self.config)
        found = description_of(self.config, self.init, self.loss, batch, self.placement, more)
        return found._replace(
            needed=functools.partial(self.model_flops, batch),
            held=functools.partial(held_bytes, self.model),
            inspect=functools.partial(require_mark, self.model.backend),
            in_sight=step_of(self.config, self._loss_of(in_sight(self.model))),
        )

    def model_flops(self, batch: Any) -> float:
        """The FLOPs that the model needs for a step on a batch of shapes: see `tasks/needs.py`."""
        model, (state, _, hyper) = counted(self.model), self.description.arguments
        texts = jax.eval_shape(self.source.texts, batch, hyper)
        rows, length = texts.tokens.shape
        own_positions = texts.positions is not None or model.new_encoding().record.sample_positions is not None
        whole = flops(functools.partial(passes, self._loss_of(model)), state, batch, hyper)
        return whole - unseen_flops(model, rows, length, own_positions)

    @functools.cached_property
    def cost(self) -> dict[str, float]:
        """Parameters, and the matrix-product FLOPs of one seed's whole training."""
        return {"parameters": self.description.size, "flops": self.description.flops * self.config.train.steps}

    def _require_room(self, section: str, model: LanguageModel) -> None:
        if model.score_room is not None and model.score_room < self.source.longest:
            raise UserError(
                f"config.model.score={model.layer.score!r}: has room for {model.score_room} tokens, not for "
                f"{self.source.longest}. Raise its option longest, or lower {self.source.length_keys}."
            )
        try:
            model.require_room(self.source.longest)
        except ValueError as error:
            raise UserError(
                f"{section}.{error} Raise config.model.max_length (of randomized positions, longest), or lower "
                f"{self.source.length_keys}."
            ) from None
