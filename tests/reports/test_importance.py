"""What heads are worth, as a map of layers and ranks."""

import numpy as np
from matplotlib.image import imread

from attention_jax.reports.importance import of_heads, worth_maps

SIZES = {"decoder": (2, 2)}
RESULT = {
    f"heads.decoder.{layer}.{rank}.{name}": layer + rank / 10
    for layer in (1, 2)
    for rank in (1, 2)
    for name in ("change", "estimate")
}


def test_heads_stand_by_layer_and_rank_and_what_is_not_known_is_none_of_them():
    np.testing.assert_allclose(of_heads(RESULT, "change", "decoder", SIZES), [[1.1, 1.2], [2.1, 2.2]])
    assert np.isnan(of_heads(RESULT | {"heads.decoder.1.1.change": None}, "change", "decoder", SIZES)[0, 0])
    assert np.isnan(of_heads(RESULT, "bleu_change", "decoder", SIZES)).all()


def test_a_model_that_translates_nothing_has_no_map_of_bleu(tmp_path):
    without = worth_maps(RESULT, SIZES, tmp_path / "without.png")
    scored = {name.replace("change", "bleu_change"): -value for name, value in RESULT.items() if "change" in name}
    with_bleu = worth_maps(RESULT | scored, SIZES, tmp_path / "with.png")
    heights = [len(imread(figure.path)) for figure in (without, with_bleu)]
    assert heights[1] > heights[0]
