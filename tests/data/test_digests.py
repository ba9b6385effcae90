"""A file of an import that was changed, cut short or removed is refused by its name, and what to do is said."""

import json
import shutil

import numpy as np
import pytest
from texts import BASE

from attention_jax.data import digests
from attention_jax.data.config import DataConfig
from attention_jax.data.corpus import load, load_references
from attention_jax.data.importing import load_or_import
from attention_jax.data.text_importing import load_text
from attention_jax.errors import UserError
from configs.nmt import CORPORA

PAIRS = "".join(f"a{i} b .\tx{i} y{' z' * (i % 7)} .\n" for i in range(60))
FILES = [
    *(
        f"{split}.{side}{kind}.npy"
        for split in ("train", "test")
        for side in ("source", "target")
        for kind in ("", ".offsets")
    ),
    *(f"{split}.bucket_{length}.npy" for split in ("train", "test") for length in (8, 12)),
    *(f"{split}.pairs.jsonl" for split in ("train", "test", "rest")),
    "source.vocabulary",
    "target.vocabulary",
]
TEXT_FILES = [
    *(f"{split}{kind}.npy" for split in ("train", "validation", "test") for kind in ("", ".documents")),
    "text.vocabulary",
]
ADVICE = "Remove the folder {folder}, and the run's next command imports it again."


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "pairs.txt").write_text(PAIRS)
    changes = {"train": 40, "validation": 0, "test": 5, "min_count": 1, "buckets": (8, 12), "max_length": 12}
    load_or_import(folder / "data", DataConfig(**CORPORA["tsv"])._replace(path=str(folder / "pairs.txt"), **changes))
    return folder / "data"


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    (folder / "t.txt").write_text(PAIRS)
    open_text(folder / "data")
    return folder / "data"


def open_corpus(folder):
    load(folder)
    return load_references(folder, ["a1 b ."])


def open_text(folder):
    return load_text(folder, BASE._replace(path=str(folder.parent / "t.txt"), held_out_test=0.1))


def flip(path, index=-1):
    content = bytearray(path.read_bytes())
    content[index] ^= 1
    path.write_bytes(content)


def without_digests(folder):
    """As an older version imported it, which kept one digest of the token arrays."""
    meta = json.loads((folder / "meta.json").read_text())
    del meta["digests"]
    (folder / "meta.json").write_text(json.dumps(meta))


def test_every_file_of_an_import_has_its_digest(corpus, text):
    for folder, files in ((corpus, FILES), (text, TEXT_FILES)):
        kept = json.loads((folder / "meta.json").read_text())["digests"]
        assert kept.keys() == {path.name for path in folder.iterdir()}
        assert set(files) <= kept.keys()


@pytest.mark.parametrize("what", ["flipped", "missing"])
@pytest.mark.parametrize("name", FILES)
def test_a_corpus_with_a_damaged_file_is_refused_by_its_name(corpus, tmp_path, name, what):
    shutil.copytree(corpus, tmp_path / "data")
    path = tmp_path / "data" / name
    flip(path) if what == "flipped" else path.unlink()
    with pytest.raises(UserError) as error:
        open_corpus(tmp_path / "data")
    assert str(error.value).startswith(f"{path}: ")
    assert "\n" not in str(error.value)
    if not name.endswith(".vocabulary"):
        assert ("damaged" if what == "flipped" else "missing") in str(error.value)
        assert str(error.value).endswith(ADVICE.format(folder=tmp_path / "data"))


@pytest.mark.parametrize("name", TEXT_FILES)
def test_a_text_with_a_damaged_file_is_refused_by_its_name(text, tmp_path, name):
    for problem, damage in (("damaged", flip), ("missing", lambda path: path.unlink())):
        folder = tmp_path / problem
        shutil.copytree(text, folder)
        damage(folder / name)
        with pytest.raises(UserError, match=f"{folder / name}: {problem}") as error:
            open_text(folder)
        assert str(error.value).endswith(ADVICE.format(folder=folder))


@pytest.mark.parametrize("which", ["corpus", "text"])
@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda content: content[: len(content) // 2], "damaged"),
        (lambda content: b"", "damaged"),
        (lambda content: b"\xff" + content[1:], "damaged"),
        (lambda content: content.replace(b'"vocabulary"', b'"vocabulbry"'), "damaged: it has no .*vocabulary"),
        (lambda content: b"[]", "damaged"),
        (None, "missing"),
    ],
)
def test_a_damaged_meta_is_one_line(request, tmp_path, which, damage, problem):
    folder = tmp_path / "data"
    shutil.copytree(request.getfixturevalue(which), folder)
    path = folder / "meta.json"
    path.write_bytes(damage(path.read_bytes())) if damage else path.unlink()
    with pytest.raises(UserError, match=f"{path}: {problem}") as error:
        (open_corpus if which == "corpus" else open_text)(folder)
    assert str(error.value).endswith(ADVICE.format(folder=folder))


def test_an_older_import_is_opened_and_its_token_arrays_are_compared_with_the_fingerprint(corpus, tmp_path):
    folder = tmp_path / "data"
    shutil.copytree(corpus, folder)
    without_digests(folder)
    open_corpus(folder)
    flip(folder / "test.target.npy")
    with pytest.raises(UserError, match=f"{folder}: damaged: its token arrays are not those of the import"):
        open_corpus(folder)


def test_an_older_import_of_a_text_which_had_two_parts_and_no_documents_says_how_to_go_on(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    for name in ("train.npy", "held_out.npy"):
        np.save(folder / name, np.arange(9, dtype=np.uint16))
    (folder / "text.vocabulary").write_text("[]")
    digests.write_meta(folder, {"vocabulary": 9, "fingerprint": "0"})
    with pytest.raises(UserError, match=f"{folder}/meta.json: damaged: it has no .*splits. Remove the folder"):
        open_text(folder)


def test_what_is_removed_is_imported_again_through_the_link_that_cells_of_a_sweep_have(corpus, tmp_path):
    shared, link = tmp_path / "shared", tmp_path / "data"
    link.symlink_to("shared")
    (tmp_path / "t.txt").write_text(PAIRS)
    found = np.array(open_text(link).splits["train"].tokens)
    assert link.is_symlink()
    flip(shared / "train.npy")
    with pytest.raises(UserError, match=f"Remove the folder {shared}, "):
        open_text(link)
    shutil.rmtree(shared)
    np.testing.assert_array_equal(open_text(link).splits["train"].tokens, found)
    assert link.is_symlink()


def test_a_file_is_hashed_once_however_often_it_is_opened(corpus, tmp_path, monkeypatch):
    shutil.copytree(corpus, tmp_path / "shared")
    (tmp_path / "data").symlink_to("shared")
    hashed = []
    once = digests.digest_of
    monkeypatch.setattr(digests, "digest_of", lambda *paths: hashed.append(paths) or once(*paths))
    for name in ("shared", "data", "shared"):
        open_corpus(tmp_path / name)
    assert len(hashed) == len(set(hashed)) == len(FILES) - 2  # the vocabularies have a check of their own
