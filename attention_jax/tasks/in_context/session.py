"""Regression in context, opened once: the model with its programs, the estimators' answers, and a run's variables."""

import dataclasses
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from ml_collections import ConfigDict, FrozenConfigDict

from attention_jax.backends import require_mark
from attention_jax.errors import UserError
from attention_jax.models.in_context import InContextRegressor
from attention_jax.models.placement import LAYERS
from attention_jax.modules.spec import with_backend
from attention_jax.ops.dropout import Dropout
from attention_jax.ops.losses import Sums, squared_error
from attention_jax.ops.masking import causal_mask
from attention_jax.tasks.in_context.drawing import Prompts, check, training_prompts
from attention_jax.tasks.in_context.held_out import HeldOut, held_out
from attention_jax.tasks.needs import counted, in_sight, unseen_flops
from attention_jax.tasks.regression.estimators import chosen
from attention_jax.tasks.regression.measuring import summary
from attention_jax.tasks.sections import of_section, tell_once, tell_unread_dropout, types_of
from attention_jax.training.cost import flops
from attention_jax.training.description import Description, description_of, step_of
from attention_jax.training.feeding import Batches, shapes_of
from attention_jax.training.loop import Task
from attention_jax.training.placement import Placement
from attention_jax.training.saved import Init, best_variables
from attention_jax.training.state import Variables
from attention_jax.training.step import Loss, passes


@dataclasses.dataclass(frozen=True)
class Session:
    """Everything that a config's model needs; each part is made once, when it is first asked for."""

    config: ConfigDict
    folder: Path | None

    @functools.cached_property
    def model(self) -> InContextRegressor:
        """The model. Raises UserError for values that do not fit."""
        length = 2 * self.config.data.pairs + 1
        fields = {"outputs": 1, **self.config.model.to_dict(), **types_of(self.config)}
        mask = jax.eval_shape(lambda: causal_mask(length, length))
        with of_section("config.model"):
            model = InContextRegressor.of(**with_backend(fields, length, [mask], tell_once))
            model.require_room(length)
        return model

    def check(self) -> None:
        """Raise UserError for values that do not fit one another."""
        check(self.config)
        chosen(self.config.evaluate.estimators, "config.evaluate.estimators")
        for name in ("examples", "choosing"):
            if self.config.evaluate[name] < 2:
                raise UserError(f"config.evaluate.{name}={self.config.evaluate[name]}: needs 2 or more.")
        if self.config.train.accumulate > 1:
            raise UserError(
                f"config.train.accumulate={self.config.train.accumulate}: prompts are drawn inside a step. Set it 1."
            )
        if self.config.optimizer.label_smoothing:
            raise UserError(
                f"config.optimizer.label_smoothing={self.config.optimizer.label_smoothing}: answers are numbers, not "
                "labels. Set it 0."
            )
        pairs, most = self.config.evaluate.pairs, self.config.data.pairs
        if not all(1 <= count <= most for count in pairs):
            raise UserError(f"config.evaluate.pairs={pairs}: needs 1 or more each, up to config.data.pairs={most}.")
        tell_unread_dropout(self.config.optimizer.dropout, self.model.layer.dropout_sites, "config.model")

    @functools.cached_property
    def init(self) -> Init:
        """key → fresh variables."""
        model, features = self.model, self.config.data.dimensions + 2
        return lambda key: dict(model.init(key, jnp.zeros((1, 1, features))))

    @property
    def placement(self) -> Placement:
        return Placement(LAYERS)

    @functools.cached_property
    def loss(self) -> Loss:
        """The squared error of every answer, of prompts that are drawn inside the step."""
        return self._loss_of(self.model)

    def _loss_of(self, model: InContextRegressor) -> Loss:
        data = self.config.data

        def of_batch(variables, batch, dropout, hyper):
            key = jax.random.fold_in(jax.random.fold_in(hyper["key"], 1), batch["step"][0, 0])
            return _error(model, variables, training_prompts(data, key), dropout, hyper)

        return of_batch

    def batches(self, seed: int, step: int, stop: int) -> Batches:
        """The numbers of steps: each draws its own prompts."""
        del seed
        rows = np.arange(step, min(stop, step + self.config.train.steps_per_call))[:, None]
        return Batches(rows, self._steps)

    @functools.cached_property
    def _steps(self) -> dict[str, np.ndarray]:
        return {"step": np.arange(self.config.train.steps, dtype=np.int32)[:, None]}

    @property
    def task(self) -> Task:
        """What the training loop needs."""
        return Task(
            init=self.init,
            loss=self.loss,
            batches=self.batches,
            steps_per_epoch=self.config.train.steps,
            evaluate=lambda variables: {f"error.{pairs}": found for pairs, found in self.errors(variables).items()},
            placement=self.placement,
            flops=self.model_flops,
            inspect=functools.partial(require_mark, self.model.backend),
        )

    def errors(self, variables: Variables) -> dict[str, float]:
        """The model's squared error against the noiseless truth of a query, by how many pairs come before it."""
        return {
            pairs: _squared(self._answer(variables, one.vectors), one.truth) for pairs, one in self.held_out.items()
        }

    def distances(self, variables: Variables) -> dict[str, dict[str, float]]:
        """The mean squared distance of the model's answers to each estimator's, by the pairs before them."""
        answers = {pairs: self._answer(variables, one.vectors) for pairs, one in self.held_out.items()}
        return {
            name: {pairs: _squared(answers[pairs], one.answers[name]) for pairs, one in self.held_out.items()}
            for name in self.config.evaluate.estimators
        }

    @functools.cached_property
    def of_estimators(self) -> dict[str, dict[str, dict[str, Any]]]:
        """Each estimator's squared error on the same draws, by the pairs, with its interval over draws."""
        return {
            name: {
                pairs: summary(np.square(np.asarray(one.answers[name] - one.truth)))
                for pairs, one in self.held_out.items()
            }
            for name in self.config.evaluate.estimators
        }

    @functools.cached_property
    def held_out(self) -> dict[str, HeldOut]:
        """Prompts that are measured, by how many pairs they have."""
        data, evaluate = FrozenConfigDict(self.config.data), FrozenConfigDict(self.config.evaluate)
        return {str(pairs): held_out(data, evaluate, pairs) for pairs in sorted({*evaluate.pairs, data.pairs})}

    @functools.cached_property
    def _answer(self) -> Any:
        model = self.model

        def last(variables: Variables, vectors: Array) -> Array:
            answers: Any = model.apply(variables, vectors)
            return answers[:, -1, 0]

        return jax.jit(last)

    def variables(self, config: ConfigDict, run: Path) -> list[Variables]:
        """Each seed's best variables in the folder of a trained run."""
        return best_variables(config, run, self.init, placement=self.placement)

    @functools.cached_property
    def description(self) -> Description:
        """Shapes of the parameters and of one step."""
        batch = shapes_of(self.batches(0, 0, 1))
        found = description_of(self.config, self.init, self.loss, batch, self.placement)
        return found._replace(
            needed=functools.partial(self.model_flops, batch),
            inspect=functools.partial(require_mark, self.model.backend),
            in_sight=step_of(self.config, self._loss_of(in_sight(self.model))),
        )

    def model_flops(self, batch: Any) -> float:
        """The FLOPs that the model needs for a step on a batch of shapes: see `tasks/needs.py`."""
        del batch
        model, (state, _, hyper) = counted(self.model), self.description.arguments
        prompts = jax.eval_shape(functools.partial(training_prompts, self.config.data), hyper["key"])
        rows, length, _ = prompts.vectors.shape
        whole = flops(functools.partial(passes, functools.partial(_error, model)), state, prompts, hyper)
        return whole - unseen_flops(model, rows, length)

    @functools.cached_property
    def cost(self) -> dict[str, float]:
        """Parameters, and the matrix-product FLOPs of one seed's whole training."""
        return {"parameters": self.description.size, "flops": self.description.flops * self.config.train.steps}


def _error(
    model: InContextRegressor, variables: Variables, prompts: Prompts, dropout: Dropout, hyper: Mapping
) -> tuple[Sums, Variables]:
    """The squared error of every answer, and the collections that it changed."""
    del hyper
    others = [name for name in variables if name != "params"]
    answers, changed = model.apply(variables, prompts.vectors, dropout, mutable=others)
    return squared_error(answers[:, ::2, 0], prompts.answers), dict(changed)


def _squared(found: Array, other: Array) -> float:
    return float(np.mean(np.square(np.asarray(found - other))))
