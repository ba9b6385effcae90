"""The table of metrics: every name that is written has its row, and nothing is guessed."""

import math

import pytest

from attention_jax.errors import UserError
from attention_jax.evaluation.metrics import METRICS, metric, require_comparable, require_direction

BETTER = {  # which way each is better: what a reader of its definition says
    "train.loss": "less",
    "train.nll": "less",
    "train.gradient_norm": "less",
    "validation.loss": "less",
    "validation.perplexity_per_word": "less",
    "test.perplexity_by_length.3-7": "less",
    "test.bleu": "more",
    "test.bleu_by_length.3-7": "more",
    "validation.alignment_error_rate": "less",
    "validation.alignment_agreement": "more",
    "area.token_accuracy": "more",
    "area.perplexity_sliding": "less",
    "curves.perplexity.64": "less",
    "estimators.kernel.mse_mean": "less",
    "cost.flops": "less",
    "cost.tokens_per_second": "more",
    "seconds": "less",
}


@pytest.mark.parametrize("name", BETTER)
def test_the_height_of_a_metric_grows_as_it_gets_better(name):
    row, better, worse = metric(name), *((1.5, 2.5) if BETTER[name] == "less" else (2.5, 1.5))
    assert row.height(better) > row.height(worse) > -math.inf


@pytest.mark.parametrize("lost", [math.nan, math.inf, -math.inf, None])
def test_what_is_not_finite_is_below_everything(lost):
    assert {row.height(lost) for row in METRICS} == {-math.inf}


def test_a_name_without_a_row_is_refused_and_so_is_choosing_by_what_has_no_direction():
    with pytest.raises(UserError, match=r"config.sweep.metric='validation.beauty': no metric of that name"):
        metric("validation.beauty", "config.sweep.metric")
    with pytest.raises(UserError, match=r"config.train.best_by='train.learning_rate': neither more nor less"):
        require_direction("train.learning_rate", "config.train.best_by")


def test_a_name_that_is_misspelt_is_told_the_nearest_and_one_that_is_like_none_is_told_none():
    with pytest.raises(UserError, match="no metric of that name; the nearest is 'bleu'"):
        metric("validation.blue")
    for name in ("validation.foo", "xyzzy"):
        with pytest.raises(UserError, match="no metric of that name. All are in"):
            metric(name)


def test_bounds_are_what_a_value_can_be():
    assert all(row.low < row.high for row in METRICS)
    assert (metric("test.bleu").low, metric("test.bleu").high) == (0, 100)
    assert metric("validation.perplexity").low == 1


@pytest.mark.parametrize("key", ["optimizer.dropout", "optimizer.label_smoothing", "model.kwargs.dropout_sites"])
def test_settings_with_other_objectives_are_not_compared_by_the_objective(key):
    configs = [{key: 0.0, "optimizer.learning_rate": 1.0}, {key: 0.1, "optimizer.learning_rate": 1.0}]
    with pytest.raises(UserError, match=rf"{key}, which changes what train.loss.*--config.sweep.metric=train.nll"):
        require_comparable("train.loss", "config.sweep.metric", configs, ("train.loss", "train.nll"))
    with pytest.raises(UserError, match="Nothing here compares them"):
        require_comparable("train.loss", "config.train.best_by", configs, ())
    require_comparable("train.nll", "config.sweep.metric", configs, ())
    require_comparable("train.loss", "config.sweep.metric", configs[:1] * 2, ())


def test_settings_with_other_tokens_are_not_compared_by_what_is_a_tokens():
    configs = [{"data.vocabulary": 5000}, {"data.vocabulary": 8000}]
    others = ("train.nll", "validation.perplexity_per_word")
    with pytest.raises(UserError, match=r"data.vocabulary, .*--config.sweep.metric=validation.perplexity_per_word"):
        require_comparable("validation.loss", "config.sweep.metric", configs, others)
    require_comparable("test.bleu", "config.sweep.metric", configs, ())


@pytest.mark.parametrize("tokenizer", ["words", "spacy", "moses"])
@pytest.mark.parametrize("key", ["data.vocabulary", "data.min_count"])
def test_where_rare_words_are_unknown_no_perplexity_compares_vocabularies_and_translations_do(tokenizer, key):
    configs = [{"data.tokenizer": tokenizer, key: value} for value in (2, 6)]
    others = ("train.nll", "validation.perplexity_per_word", "validation.bleu", "validation.chrf")
    for name in ("validation.loss", "validation.perplexity_per_word", "test.bits_per_byte"):
        with pytest.raises(UserError, match=rf"{key}, which changes.*: --config.sweep.metric=validation.bleu\."):
            require_comparable(name, "config.sweep.metric", configs, others)
    pieces = [{"data.tokenizer": "bpe", "data.vocabulary": value} for value in (500, 600)]
    require_comparable("validation.perplexity_per_word", "config.sweep.metric", pieces, ())
    with pytest.raises(UserError, match=r"data.tokenizer"):
        require_comparable("test.perplexity_per_word", "config.sweep.metric", [configs[0], pieces[0]], others)


def test_bleu_over_other_tokens_is_another_metric():
    configs = [{"evaluate.bleu_tokens": name} for name in ("13a", "moses")]
    others = ("validation.bleu", "validation.chrf")
    for name in ("test.bleu", "test.beams.bleu", "test.bleu_by_length.3-7"):
        with pytest.raises(UserError, match=r"evaluate.bleu_tokens, .*: --config.sweep.metric=validation.chrf"):
            require_comparable(name, "config.sweep.metric", configs, others)
    require_comparable("test.bleu_13a", "config.sweep.metric", configs, ())
