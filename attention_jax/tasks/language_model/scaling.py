"""A language model's parametrization: the lines of its config, and what they are not known for."""

import functools

import jax
from jaxtyping import Array, Key
from ml_collections import ConfigDict

from attention_jax.errors import UserError
from attention_jax.models.language_model import LanguageModel
from attention_jax.modules.families import PLAIN
from attention_jax.tasks.language_model.model import init
from attention_jax.training.parametrization import ELEMENTWISE, PARAMETRIZATIONS, Lines, drawn, lines_of, unknown
from attention_jax.training.state import Variables

STANDARD = "standard"


def lines_of_config(config: ConfigDict, model: LanguageModel) -> Lines:
    """The lines of `config.model.parametrization`; "standard" has none.

    Raises UserError for a name that does not exist, and where the lines do not hold for the model or its optimizer.
    """
    name = config.model.parametrization
    if name not in PARAMETRIZATIONS:
        raise UserError(f"config.model.parametrization={name!r}: choose one of {', '.join(PARAMETRIZATIONS)}.")
    if name == STANDARD:
        return ()
    _require_fitting(config, model)
    lines = lines_of(name, config.model.base_width / model.layer.width, model.is_tied)
    params = jax.eval_shape(functools.partial(init, model), jax.random.key(0))["params"]
    if strange := unknown(params, lines):
        raise _refusal(config, f"has no line for the matrix {strange[0]}", "leave out what has it")
    return lines


def scaled_init(model: LanguageModel, lines: Lines, key: Key[Array, ""]) -> Variables:
    """Fresh variables, drawn as the lines say."""
    variables = init(model, key)
    return {**variables, "params": drawn(variables["params"], lines)}


def _require_fitting(config: ConfigDict, model: LanguageModel) -> None:
    """Raise UserError where a line of the table would not mean what it says."""
    layer, optimizer = model.layer, config.optimizer.name
    if config.model.base_width < 1:
        raise UserError(f"config.model.base_width={config.model.base_width}: needs 1 or more.")
    for fits, because, fix in (
        (optimizer in ELEMENTWISE, f"is not known for {optimizer}", f"config.optimizer.name={ELEMENTWISE[0]}"),
        (
            layer.heads == config.model.base_heads,
            f"scales scores for heads that widen with the model, and heads={layer.heads} are not "
            f"base_heads={config.model.base_heads}",
            f"heads={config.model.base_heads}, or the base_width and base_heads of a narrow model with as many heads",
        ),
        (layer.score == "scaled_dot", f"is not known for score={layer.score!r}", "score=scaled_dot"),
        (layer.family == PLAIN, f"is not known for family={layer.family!r}", "family=plain"),
        (not layer.qk_norm, "scales scores by the queries' matrix, which qk_norm undoes", "qk_norm=False"),
        (
            layer.norm_first or not model.is_tied,
            "scales tied logits by the last norm, which norm_first=False has not",
            "norm_first=True or is_tied=False",
        ),
    ):
        if not fits:
            raise _refusal(config, because, f"choose {fix}")


def _refusal(config: ConfigDict, because: str, fix: str) -> UserError:
    return UserError(f"config.model.parametrization={config.model.parametrization!r}: {because}; {fix}.")
