"""What CONTRIBUTING.md says is true of the code."""

import re

import jax.numpy as jnp
import pytest
from support import ROOT

from attention_jax.ops.shapes import align_ranks

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def test_ranks_are_not_promoted_and_aligning_them_mends_it():
    scores, bias = jnp.ones((2, 3, 5)), jnp.arange(5.0)
    (told,) = re.findall(r"^```\n(ValueError: .*?)```", TEXT, flags=re.DOTALL | re.MULTILINE)
    with pytest.raises(ValueError, match="rank_promotion") as refused:
        scores + bias
    assert " ".join(told.split()).removeprefix("ValueError: ").rstrip(".") in str(refused.value)
    (mended,) = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)
    names = {"jnp": jnp, "align_ranks": align_ranks, "scores": scores, "bias": bias}
    exec(mended, names)
    assert names["scores"].shape == (2, 3, 5)


def test_its_files_and_targets_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"make ([a-z-]+)\b", TEXT.split("## The walls")[0]):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
    for path in re.findall(r"`((?:attention_jax|tests|experiments|configs)/[\w/.]*)`", TEXT):
        assert (ROOT / path).exists(), path
