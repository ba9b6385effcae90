"""What a training step costs, before anything is trained."""

import pytest

from attention_jax.launcher import experiments
from configs import language_model, nmt

ROWS, LENGTH, WIDTH, HIDDEN, LAYERS, VOCABULARY = 3, 8, 16, 32, 2, 50
SIZES = {"width": WIDTH, "feed_forward": HIDDEN, "heads": 2, "kv_heads": 2}


def described(config):
    return experiments.load(config.experiment).describe(config)


def causal(tokens):
    """Multiply-adds of scores and values, of a row of so many tokens."""
    return sum(2 * WIDTH * (query + 1) for query in range(tokens))


@pytest.mark.parametrize(
    ("stacked", "remat", "backend"), [(False, "none", "reference"), (True, "full", "chunked:queries=4,keys=4")]
)
def test_a_models_flops_are_those_of_its_products_whatever_is_computed_again(stacked, remat, backend):
    config = language_model.get_config("cpu,pieces")
    config.model.update(SIZES | {"layers": LAYERS, "stacked": stacked, "remat": remat, "backend": backend})
    config.data.update({"length": LENGTH, "batch": ROWS, "vocabulary": VOCABULARY})
    layer = LENGTH * (4 * WIDTH * WIDTH + 2 * WIDTH * HIDDEN) + causal(LENGTH)
    once = ROWS * (LAYERS * layer + LENGTH * WIDTH * VOCABULARY)
    found = described(config)
    assert found.model_flops == 3 * 2 * once
    if remat != "none":
        assert found.flops > found.model_flops
    config.optimizer.name = "muon"  # whose own products are none of the model's
    muon = described(config)
    assert muon.model_flops == 3 * 2 * once
    assert muon.flops > found.flops


@pytest.mark.parametrize(("remat", "backend"), [("none", "reference"), ("full", "chunked:queries=4,keys=4")])
def test_of_a_translator_the_decoders_own_attention_alone_is_causal(remat, backend):
    config = nmt.get_config("transformer_book,embedded")
    config.model.kwargs.update(SIZES | {"encoder_layers": 1, "decoder_layers": 1, "remat": remat, "backend": backend})
    config.data.update({"vocabulary": VOCABULARY, "batch_tokens": ROWS * LENGTH, "buckets": (LENGTH,)})
    project, feed, attend = LENGTH * WIDTH * WIDTH, 2 * LENGTH * WIDTH * HIDDEN, 2 * LENGTH * LENGTH * WIDTH
    encoder = 4 * project + attend + feed
    decoder = 4 * project + causal(LENGTH) + 4 * project + attend + feed
    assert described(config).model_flops == 3 * 2 * ROWS * (encoder + decoder + LENGTH * WIDTH * VOCABULARY)


@pytest.mark.parametrize("parts", [2, 4])  # of three rows, which a run fills up
def test_micro_batches_of_any_number_are_described_with_the_rows_that_a_run_fills_up(parts):
    config = nmt.get_config("bahdanau,embedded")
    config.data.update({"batch_tokens": ROWS * LENGTH, "buckets": (LENGTH,)})
    whole = described(config).flops
    config.train.accumulate = parts
    assert described(config).flops == pytest.approx(whole * 4 / ROWS, rel=0.05)
