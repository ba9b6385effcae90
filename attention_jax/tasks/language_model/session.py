"""A language model, opened once: what it is trained on, the model with its programs, and what a run has trained."""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from attention_jax.errors import UserError
from attention_jax.models.language_model import LanguageModel
from attention_jax.modules.mixers import MIXERS
from attention_jax.ops.positions import require_room
from attention_jax.tasks.language_model.generating import Generator
from attention_jax.tasks.language_model.measuring import Total, total_of
from attention_jax.tasks.language_model.model import build, init, loss
from attention_jax.tasks.language_model.source import Measure, Opener, Source
from attention_jax.training.description import Description, description_of
from attention_jax.training.saved import Init, best_variables
from attention_jax.training.state import Variables
from attention_jax.training.step import Loss


@dataclasses.dataclass(frozen=True)
class Session:
    """Everything that a config's language model needs, each part made when first asked for, and once.

    `folder` is where the data is; it is imported there where it is not yet. Without a folder nothing is read: only
    shapes are right. `openers` are what `config.data.source` chooses from, by the name before its colon.
    """

    config: ConfigDict
    folder: Path | None
    openers: Mapping[str, Opener]
    _restored: dict[Path, list[Variables]] = dataclasses.field(default_factory=dict, init=False)

    @functools.cached_property
    def source(self) -> Source:
        """What the config trains on. Raises UserError for values that do not fit."""
        name = self.config.data.source.partition(":")[0]
        if name not in self.openers:
            raise UserError(f"config.data.source={self.config.data.source!r}: choose one of {', '.join(self.openers)}.")
        return self.openers[name](self.config, self.folder)

    @functools.cached_property
    def model(self) -> LanguageModel:
        """The model that is trained. Raises UserError where the longest text has no room, or documents would mix."""
        model = build(self.config, self.source.vocabulary, self.source.places)
        self._require_room(model)
        if self.source.has_segments and model.layer.mixer in MIXERS:
            raise UserError(
                f"config.model.mixer={model.layer.mixer!r} reads each row as one text, and rows are packed documents: "
                "choose --config.data.packing=windows."
            )
        return model

    @functools.cached_property
    def measured(self) -> LanguageModel:
        """The model with the encoding that it is measured with: `config.evaluate.positions`, or its own if empty.

        Raises UserError where the two do not have the same parameters, or the longest text has no room.
        """
        name = self.config.evaluate.positions or self.model.positions
        try:
            measured = self.model.clone(positions=name)
        except ValueError as error:
            raise UserError(f"config.evaluate.positions: {error}") from None
        self._require_room(measured)
        shapes = [jax.eval_shape(functools.partial(init, one), jax.random.key(0)) for one in (self.model, measured)]
        if jax.tree.map(jnp.shape, shapes[0]) != jax.tree.map(jnp.shape, shapes[1]):
            raise UserError(
                f"config.evaluate.positions={name!r} has other parameters than {self.model.positions!r}, which is "
                "trained: choose one that has the same."
            )
        return measured

    def check(self) -> None:
        """Raise UserError for values that do not fit one another."""
        _ = self.measured

    @property
    def init(self) -> Init:
        """key → fresh variables. The model is made before this is traced: what is made in a trace ends with it."""
        return functools.partial(init, self.model)

    @functools.cached_property
    def loss(self) -> Loss:
        """The loss of a training step, with the label smoothing of its dynamic values."""
        source, model = self.source, self.model

        def of_batch(variables, batch, dropout, hyper):
            return loss(model, variables, source.texts(batch, hyper), dropout, hyper["label_smoothing"])

        return of_batch

    @functools.cached_property
    def measure(self) -> Measure:
        """Measures a trained model; one compiled program for all runs that share their shapes."""
        return self.source.measure(self.measured)

    @functools.cached_property
    def measure_so_far(self) -> Measure:
        """What is measured while training goes on."""
        return self.source.measure_so_far(self.model)

    @functools.cached_property
    def total(self) -> Total:
        """Sums of nats over rows of any text, by the model that is measured."""
        return total_of(self.measured)

    @functools.cached_property
    def generator(self) -> Generator:
        """The programs that write text."""
        return Generator(self.measured)

    @functools.cached_property
    def attention(self) -> Any:
        """(variables, tokens, positions) → the weights of every layer and head, compiled."""
        model = self.measured
        return jax.jit(lambda *arguments: model.apply(*arguments, method="attention")["decoder"].weights)  # type: ignore

    def variables(self, config: ConfigDict, run: Path) -> list[Variables]:
        """Each seed's best variables in the folder of a trained run.

        The run's config may differ from this one's in dynamic values. One run's variables are kept, the last one's.
        """
        if run not in self._restored:
            self._restored.clear()
            self._restored[run] = best_variables(config, run, self.init, self.source.tokens_are)
        return self._restored[run]

    @functools.cached_property
    def description(self) -> Description:
        """Shapes of the parameters and of one step."""
        table, rows = self.source.call(0, 0, 1)
        shape = functools.partial(_of_rows, rows.shape[1])
        return description_of(
            self.config, self.init, self.loss, jax.tree.map(shape, table), self.source.traced(self.config)
        )

    @functools.cached_property
    def cost(self) -> dict[str, float]:
        """Parameters, and the matrix-product FLOPs of one seed's whole training."""
        return {"parameters": self.description.size, "flops": self.description.flops * self.config.train.steps}

    def _require_room(self, model: LanguageModel) -> None:
        encoding = model.new_encoding()
        try:
            require_room(model.positions, encoding.record, encoding.sizes, self.source.places)
        except ValueError as error:
            raise UserError(f"{self.source.told}, config.model.max_length: {error}") from None


def _of_rows(count: int, column: jax.Array) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((count, *column.shape[1:]), column.dtype)
