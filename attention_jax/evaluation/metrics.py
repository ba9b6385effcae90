"""The table of metrics: which way is better, what a value can be, its unit, and what may be compared by it.

Every direction and bound is read from here, and a name that no row matches is an error: nobody guesses from a name.
"""

import difflib
import math
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from attention_jax.errors import UserError


class Metric(NamedTuple):
    """A row: a pattern of dotted names, whether more is better (None: neither), the least and the greatest value.

    `depends_on` are keys of a config that change what it measures. A metric `of_text` depends on the tokens too where a
    tokenizer has <unk>. Where `is_log`, intervals and differences are made on the logarithm.
    """

    pattern: str
    more_is_better: bool | None
    low: float
    high: float
    unit: str
    depends_on: tuple[str, ...] = ()
    of_text: bool = False
    is_log: bool = False

    @property
    def contrast(self) -> str:
        """What tells two values apart: their "difference", or, on the logarithm, the "ratio" between them."""
        return "ratio" if self.is_log else "difference"

    def height(self, value: float | None) -> float:
        """The value so that more is better; −∞ where it is not finite or not known: what is lost is never best."""
        if value is None or not math.isfinite(value):
            return -math.inf
        return value if self.more_is_better else -value


LESS, MORE, NEITHER = False, True, None
NATS = "nats a target token"
# The keys of a config that change the training objective, those that change what a token is, and what BLEU counts.
OBJECTIVE = (
    "optimizer.dropout",
    "optimizer.label_smoothing",
    "model.dropout_sites",
    "model.kwargs.dropout_sites",
)
TOKENS = ("data.tokenizer", "data.vocabulary", "data.min_count", "data.joint_vocabulary")
BLEU_TOKENS = ("evaluate.bleu_tokens",)
WITH_UNKNOWN = ("words", "spacy", "moses")  # tokenizers whose rare words are all <unk>, which is easily guessed

METRICS = (
    Metric("train.loss", LESS, 0, math.inf, NATS, OBJECTIVE + TOKENS),
    Metric("train.gradient_norm", LESS, 0, math.inf, "norm", OBJECTIVE),
    Metric("train.learning_rate", NEITHER, 0, math.inf, "rate"),
    Metric("train.tokens", NEITHER, 0, math.inf, "tokens"),
    Metric("train.step_seconds", LESS, 0, math.inf, "seconds"),
    Metric("train.update_norm", NEITHER, 0, math.inf, "norm"),
    Metric("train.skipped", LESS, 0, math.inf, "steps"),
    Metric("*tokens_per_second", MORE, 0, math.inf, "tokens a second"),
    Metric("*mfu", MORE, 0, 1, "share"),
    Metric("goodput.steps", MORE, 0, 1, "share"),
    Metric("goodput.*", LESS, 0, 1, "share"),
    Metric("*nll", LESS, 0, math.inf, NATS, TOKENS),
    Metric("*loss", LESS, 0, math.inf, NATS, TOKENS),
    Metric("*perplexity", LESS, 1, math.inf, "perplexity a token", TOKENS, is_log=True),
    Metric("*perplexity_sliding", LESS, 1, math.inf, "perplexity a token", TOKENS, is_log=True),
    Metric("*perplexity_per_word", LESS, 1, math.inf, "perplexity a word", of_text=True, is_log=True),
    Metric("*bits_per_byte", LESS, 0, math.inf, "bits a byte", of_text=True),
    Metric("*perplexity_by_length.*", LESS, 1, math.inf, "perplexity a token", TOKENS, is_log=True),
    Metric("*bleu", MORE, 0, 100, "BLEU", BLEU_TOKENS),
    Metric("*bleu_13a", MORE, 0, 100, "BLEU"),
    Metric("*bleu_by_length.*", MORE, 0, 100, "BLEU", BLEU_TOKENS),
    Metric("*chrf", MORE, 0, 100, "chrF"),
    Metric("book.*", MORE, 0, 1, "the textbook's k = 2 score"),
    Metric("*alignment_error_rate", LESS, 0, 1, "share"),
    Metric("*alignment_agreement", MORE, 0, 1, "share"),
    Metric("*monotonicity", NEITHER, 0, 1, "share"),
    Metric("*coverage", NEITHER, 0, 1, "share"),
    Metric("*entropy", NEITHER, 0, math.inf, "nats"),
    Metric("*token_accuracy", MORE, 0, 1, "share"),
    Metric("*exact_match", MORE, 0, 1, "share"),
    Metric("curves.token_accuracy.*", MORE, 0, 1, "share"),
    Metric("curves.exact_match.*", MORE, 0, 1, "share"),
    Metric("curves.perplexity*.*", LESS, 1, math.inf, "perplexity a token", TOKENS, is_log=True),
    Metric("regret.*", LESS, 0, math.inf, "of the metric that is searched for"),
    Metric("statistics.entropy*", NEITHER, 0, math.inf, "nats"),
    Metric("statistics.distance*", NEITHER, 0, math.inf, "tokens"),
    Metric("statistics.first*", NEITHER, 0, 1, "share"),
    Metric("mrr", MORE, 0, 1, "mean reciprocal rank"),
    Metric("*kendall_tau", MORE, -1, 1, "τ"),
    Metric("*total_variation", NEITHER, 0, 1, "share"),
    Metric("*total_variation_of_weights", NEITHER, 0, 1, "share"),
    Metric("*jensen_shannon_of_weights", NEITHER, 0, math.log(2), "nats"),
    Metric("*is_flipped", NEITHER, 0, 1, "share"),
    Metric("*elsewhere", NEITHER, 0, 1, "share"),
    Metric("spearman.*", MORE, -1, 1, "ρ"),
    Metric("spared.*", NEITHER, 0, 1, "share of heads"),
    Metric("pruning.*", LESS, 0, math.inf, NATS, TOKENS),
    Metric("roles.chance.*", NEITHER, 0, 1, "share"),
    Metric("roles.*", NEITHER, 0, math.inf, "heads"),
    Metric("patching.right", MORE, 0, 1, "share"),
    *(Metric(f"heads.*.{name}", NEITHER, 0, 1, "share") for name in ("positional", "rare", "aligned")),
    Metric("induction.in_context_gain", MORE, -math.inf, math.inf, NATS, TOKENS),
    Metric("induction.*", MORE, 0, 1, "share"),
    Metric("phase.*_step", NEITHER, 0, math.inf, "steps"),
    Metric("*mse_mean", LESS, 0, math.inf, "squared error"),
    Metric("*mse_std", LESS, 0, math.inf, "squared error"),
    Metric("error.*", LESS, 0, math.inf, "squared error"),
    Metric("distance.*", NEITHER, 0, math.inf, "squared distance"),
    Metric("*exponents.*", LESS, -math.inf, math.inf, "power"),
    Metric("cost.parameters", LESS, 0, math.inf, "parameters"),
    Metric("cost.flops", LESS, 0, math.inf, "FLOPs"),
    Metric("cost.held_bytes", LESS, 0, math.inf, "bytes"),
    Metric("cost.step_seconds", LESS, 0, math.inf, "seconds"),
    Metric("*seconds", LESS, 0, math.inf, "seconds"),
)


def metric(name: str, asked_by: str = "") -> Metric:
    """The first row that matches a dotted name.

    Raises UserError where there is none; its message names the flag or key that asked: "config.sweep.metric".
    """
    if (found := find(name)) is not None:
        return found
    names = {row.pattern.strip("*."): row for row in METRICS}
    nearest = difflib.get_close_matches(name.rpartition(".")[2], names, n=1)
    meant = f"; the nearest is {nearest[0]!r}" if nearest else ""
    raise UserError(
        f"{asked_by and f'{asked_by}='}{name!r}: no metric of that name{meant}. All are in "
        "attention_jax/evaluation/metrics.py."
    )


def find(name: str) -> Metric | None:
    """The first row that matches a dotted name, or None."""
    return next((row for row in METRICS if fnmatchcase(name, row.pattern)), None)


def require_direction(name: str, asked_by: str) -> None:
    """Raise UserError for a metric of which neither more nor less is better: nothing can be chosen by it."""
    if metric(name, asked_by).more_is_better is NEITHER:
        raise UserError(f"{asked_by}={name!r}: neither more nor less of it is better: nothing can be chosen by it.")


def require_comparable(name: str, asked_by: str, configs: Sequence[Mapping[str, Any]], others: Sequence[str]) -> None:
    """Raise UserError where flat configs differ in what the metric measures, so that it does not compare their models.

    A metric of the objective needs one objective, a metric a token the same tokens, BLEU one way to count. The message
    names the first of `others` that compares the configs.
    """
    if changed := incomparable(name, asked_by, configs):
        better = [other for other in others if not incomparable(other, asked_by, configs)]
        advice = f"Compare by another metric: --{asked_by}={better[0]}." if better else "Nothing here compares them."
        raise UserError(
            f"{asked_by}={name!r}: settings differ in {', '.join(changed)}, which changes what {name} measures and "
            f"not only how well a model does. {advice}"
        )


def incomparable(name: str, asked_by: str, configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys in which configs differ that keep a metric from comparing them."""
    row = metric(name, asked_by)
    has_unknown = any(flat.get("data.tokenizer") in WITH_UNKNOWN for flat in configs)
    keys = row.depends_on + TOKENS * (row.of_text and has_unknown)
    return [part for part in keys if len({repr(flat.get(part)) for flat in configs}) > 1]
