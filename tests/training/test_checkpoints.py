"""Checkpoints, damaged in every way: verified, passed over, set aside, never in each other's way."""

import json

import jax
import numpy as np
import pytest

from attention_jax.errors import UserError
from attention_jax.training.checkpoints import Checkpoints

LIKE = {"w": np.zeros((40, 5), np.float32), "step": np.zeros((), np.int32)}


def state(step):
    return {"w": np.random.default_rng(step).normal(size=(40, 5)).astype(np.float32), "step": np.int32(step)}


def opened(folder, told=None, **options):
    return Checkpoints(folder, 3, (told if told is not None else []).append, **options)


def saved(folder, *steps, **options):
    checkpoints = opened(folder, **options)
    for step in steps:
        checkpoints.save(step, state(step))
    checkpoints.close()
    return folder


def read(folder, **options):
    """The newest checkpoint that can be read, and what was said on the way."""
    told = []
    found = opened(folder, told, read_only=True, **options).restore(LIKE)
    jax.tree.map(np.testing.assert_array_equal, found.state, state(found.step))
    return found.step, told


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_a_flipped_byte_is_found_in_whichever_file_it_is(tmp_path, capfd):
    folder = saved(tmp_path, 10, 20)
    for path in sorted(path for path in (folder / "20").rglob("*") if path.is_file()):
        whole = path.read_bytes()
        for index in np.linspace(0, len(whole) - 1, 6).astype(int):
            damaged = bytearray(whole)
            damaged[index] ^= 4
            path.write_bytes(damaged)
            step, (line,) = read(folder)
            assert step == 10
            assert "20: cannot be read" in line
            assert "using the one before it" in line
        path.write_bytes(whole)
    assert read(folder) == (20, [])
    assert capfd.readouterr().err == ""  # nor does a thread of orbax's speak of it


def test_a_file_that_is_not_what_was_saved_is_named(tmp_path):
    folder = saved(tmp_path, 10, 20)
    (folder / "20" / "default" / "_METADATA").write_text("{}")
    step, told = read(folder)
    assert step == 10
    reason = "default/_METADATA: its digest is not what was saved"
    assert told == [f"{folder / '20'}: cannot be read ({reason}); using the one before it."]


@pytest.mark.parametrize("damage", ["empty", "without arrays", "without about.json", "a file"])
def test_one_bad_checkpoint_leaves_the_good_ones_readable_and_the_run_goes_on_over_it(tmp_path, damage):
    folder = saved(tmp_path, 10, 20)
    if damage == "a file":
        (folder / "70").write_text("")
    elif damage == "empty":
        (folder / "70").mkdir()
    else:
        saved(folder, 70)
        (folder / "70" / "default").rename(tmp_path / "away") if damage == "without arrays" else (
            folder / "70" / "about.json"
        ).unlink()
    step, told = read(folder)
    assert step == 20
    assert f"{folder / '70'}: cannot be read" in told[0]
    checkpoints = opened(folder)
    assert checkpoints.restore(LIKE).step == 20
    assert checkpoints.last_step() == 20
    checkpoints.save(70, state(70))
    checkpoints.close()
    assert read(folder) == (70, [])


def test_a_step_that_is_damaged_again_is_set_aside_again(tmp_path):
    folder = saved(tmp_path, 10, 20)
    for _ in range(3):
        (folder / "20" / "about.json").unlink()
        checkpoints = opened(folder)
        assert checkpoints.restore(LIKE).step == 10
        checkpoints.save(20, state(20))
        checkpoints.close()
    assert read(folder) == (20, [])
    assert names(folder) == ["10", "20", "20.unreadable", "20.unreadable-2", "20.unreadable-3"]


def test_what_a_kill_left_half_written_or_half_removed_is_no_checkpoint_and_goes(tmp_path):
    folder = saved(tmp_path, 10)
    for name in ("partial-20", "removed-5", "30.orbax-checkpoint-tmp"):
        (folder / name / "default").mkdir(parents=True)
    (folder / "mine.txt").write_text("x")
    assert read(folder) == (10, [])
    assert "partial-20" in names(folder)  # reading changes nothing
    opened(folder).close()
    assert names(folder) == ["10", "mine.txt"]


def test_a_checkpoint_that_fails_to_be_written_leaves_nothing_behind(tmp_path):
    folder = saved(tmp_path, 10)
    with pytest.raises(ValueError, match="not JSON compliant"):
        saved(folder, 20, beside=lambda step: float("nan"))
    checkpoints = opened(folder)
    checkpoints._storage._arrays = None  # the arrays cannot be written
    with pytest.raises(AttributeError):
        checkpoints.save(20, state(20))
    assert names(folder) == ["10"]


def test_what_is_kept_beside_a_state_comes_back_with_it(tmp_path):
    saved(tmp_path, 10, 20, beside=lambda step: {"lines": [step, 0.1, None, "é"]})
    found = list(opened(tmp_path, read_only=True).restore_each(LIKE))
    assert [(saved.step, saved.beside) for saved in found] == [
        (step, {"lines": [step, 0.1, None, "é"]}) for step in (20, 10)
    ]


def test_every_step_knows_its_vocabulary(tmp_path):
    folder = saved(tmp_path, 10, 20, vocabulary="one")
    (folder / "20" / "about.json").write_text("{")
    assert opened(folder, vocabulary="other", read_only=True).vocabulary == "one"


def test_where_none_can_be_read_it_is_refused_by_name(tmp_path):
    folder = saved(tmp_path, 10, 20)
    for step in (10, 20):
        (folder / str(step) / "about.json").write_text(json.dumps({"about": 1}))
    with pytest.raises(UserError, match=r"10: cannot be read \(about.json is damaged\), nor any before it"):
        opened(folder).restore(LIKE)
