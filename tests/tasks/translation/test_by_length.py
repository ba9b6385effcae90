"""What a sweep over translators concludes."""

from ml_collections import ConfigDict

from attention_jax.reports.conclusion import FinishedCell
from attention_jax.reports.figures import colours
from attention_jax.tasks.translation.by_length import conclude


def concluded(folder, tokens, groups=("", "")):
    members = [{"test": {"bleu": 30.0, "bleu_by_length": {"3-7": 31.0, "8-9": 29.0}}}]
    result = {"status": "finished", "seeds": [0], "members": members}
    cells = [
        FinishedCell(ConfigDict({"evaluate": {"bleu_tokens": own}}), folder, result, name, group, "a")
        for name, own, group in zip("ab", tokens, groups, strict=True)
    ]
    config = ConfigDict({"sweep": {"metric": "validation.chrf"}})
    return conclude(config, cells, folder, colours("ab"))


def test_settings_are_ordered_by_bleu_unless_theirs_is_over_other_tokens(tmp_path):
    found = concluded(tmp_path, ("13a", "13a"))
    assert [table.title for table in found.tables] == ["Test BLEU"]
    assert len(found.figures) == 1
    other = concluded(tmp_path, ("13a", "moses"))
    assert (other.result, other.figures, other.tables) == ({"orders": {}}, [], [])
    assert concluded(tmp_path, ("13a", "moses"), ("one", "two")).figures  # each is compared within its group
