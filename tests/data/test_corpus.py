"""Import: splits by source, vocabularies of the training split, arrays that come back."""

import numpy as np
import pytest

from attention_jax.data.config import DataConfig
from attention_jax.data.corpus import load_references
from attention_jax.data.importing import load_or_import
from attention_jax.data.sources import Pair
from attention_jax.data.splits import REST, SHARE, by_source, in_order, sentence_key, sizes_of
from attention_jax.data.tokenizers import EOS, UNK
from attention_jax.errors import UserError
from attention_jax.tasks.translation.messages import tell_held_out
from configs.nmt import CORPORA

PAIRS = [Pair(f"s{i // 3}", f"t{i}", f"f:{i + 1}") for i in range(30)]


def config(**changes):
    return DataConfig(**CORPORA["tsv"])._replace(validation=2, test=0, min_count=1, **changes)


def write(path, pairs):
    path.write_text("".join(f"{source}\t{target}\n" for source, target in pairs), encoding="utf-8")
    return str(path)


def split(how, train, validation, test, seed=0):
    """Every split's pairs."""
    splits = {"train": [], "validation": [], "test": [], REST: []}
    for name, pair in how(lambda: iter(PAIRS), train, validation, test, seed):
        splits[name].append(pair)
    return splits


def test_a_source_sentence_is_in_one_split_alone():
    splits = split(by_source, train=0, validation=3, test=2)
    keys = {name: {sentence_key(pair) for pair in pairs} for name, pairs in splits.items()}
    assert [len(keys[name]) for name in ("train", "validation", "test")] == [5, 3, 2]
    assert len(set.union(*keys.values())) == 10
    assert sum(map(len, splits.values())) == len(PAIRS)
    assert splits == split(by_source, 0, 3, 2)
    assert splits != split(by_source, 0, 3, 2, seed=1)
    assert len(split(by_source, train=4, validation=3, test=2)["train"]) == 4 * 3


def test_in_order_takes_the_first_pairs_and_validates_on_sentences_not_among_them():
    splits = split(in_order, train=4, validation=5, test=0)
    assert splits["train"] == PAIRS[:4]
    assert splits["validation"] == PAIRS[6:11]


@pytest.mark.parametrize(("how", "counts"), [(by_source, (0, 9, 1)), (by_source, (8, 2, 1)), (in_order, (28, 5, 0))])
def test_too_few_sentences_are_refused(how, counts):
    with pytest.raises(UserError, match="too few for config.data.*Lower one of them"):
        split(how, *counts)


def test_an_import_comes_back_from_its_files(tmp_path):
    path = write(tmp_path / "p.txt", [(f"a{i} b .", f"x{i} y .") for i in range(10)])
    corpus = load_or_import(tmp_path / "data", config(path=path))
    train = corpus.splits["train"]
    assert isinstance(train.source.tokens, np.memmap)
    assert len(train.source) == len(train.target) == 8
    for index in range(8):
        words = corpus.source.words(train.source[index])
        assert words[1:] == ["b", ".", "<eos>"]
        assert words[0][0] == "a"
    again = load_or_import(tmp_path / "data", config(path="gone"))  # imported once
    assert again.meta == corpus.meta


def test_the_vocabulary_is_of_the_training_split_alone(tmp_path):
    path = write(tmp_path / "p.txt", [(f"a{i}", f"x{i}") for i in range(10)])
    corpus = load_or_import(tmp_path / "data", config(path=path))
    validation = corpus.splits["validation"]
    assert all(list(validation.source[i]) == [UNK, EOS] for i in range(2))


def test_every_reference_of_a_sentence_is_kept(tmp_path):
    path = write(tmp_path / "p.txt", [(f"a{i // 2}", f"x{i}") for i in range(20)])
    corpus = load_or_import(tmp_path / "data", config(path=path))
    assert [len(reference.targets) for reference in corpus.splits["validation"].references] == [2, 2]
    assert [r.targets for r in load_references(tmp_path / "data", ["a3"])] == [["x6", "x7"]]


def test_a_file_that_is_held_out_is_translated_line_by_line_as_others_measure_it(tmp_path):
    train = write(tmp_path / "train.txt", [(f"a{i}", f"x{i}") for i in range(10)])
    held_out = write(tmp_path / "test.txt", [("b", "y"), ("c", "z"), ("B", "yy")])
    corpus = load_or_import(tmp_path / "data", config(path=train, test_path=held_out))
    references = corpus.splits["test"].references
    assert [(one.source, one.targets) for one in references] == [("b", ["y"]), ("c", ["z"]), ("B", ["yy"])]


def test_pieces_that_are_missing_or_of_another_import_are_refused(tmp_path):
    path = write(tmp_path / "p.txt", [(f"the sea {i}", f"la mer {i}") for i in range(30)])
    asked = config(path=path, tokenizer="unigram", vocabulary=24)
    load_or_import(tmp_path / "data", asked)
    model = tmp_path / "data" / "target.vocabulary"
    model.write_bytes((tmp_path / "data" / "source.vocabulary").read_bytes())
    with pytest.raises(UserError, match=f"{model}: not the vocabulary this run was trained with"):
        load_or_import(tmp_path / "data", asked)
    model.unlink()
    with pytest.raises(UserError, match=f"{model}: missing"):
        load_or_import(tmp_path / "data", asked)


LONG = [(f"a{i}", "x " * (i + 1)) for i in range(10)]


def test_long_sentences_are_refused_cut_or_skipped_as_the_config_says(tmp_path):
    path = write(tmp_path / "p.txt", LONG)
    with pytest.raises(UserError, match=r"p.txt:\d+: \d+ tokens with <eos>.*max_length=6.*on_long=truncate or skip"):
        load_or_import(tmp_path / "error", config(path=path, max_length=6))
    assert not (tmp_path / "error").exists()
    cut = load_or_import(tmp_path / "cut", config(path=path, max_length=6, on_long="truncate")).meta
    assert cut["too_long"] == {"pairs": 5, "what": "truncate"}
    assert sum(cut["pairs"].values()) == 10
    skipped = load_or_import(tmp_path / "skip", config(path=path, max_length=6, on_long="skip"))
    assert sum(skipped.meta["pairs"].values()) == 5
    assert len(skipped.splits["validation"].references) == skipped.meta["pairs"]["validation"]


def test_held_out_files_replace_the_split_and_leave_the_training_pairs(tmp_path):
    train = write(tmp_path / "train.txt", [(f"a{i}", f"x{i}") for i in range(10)])
    held_out = write(tmp_path / "val.txt", [("a3", "x"), ("b", "y")])
    corpus = load_or_import(tmp_path / "data", config(path=train, validation_path=held_out))
    assert corpus.meta["pairs"] == {"train": 9, "validation": 2}
    assert corpus.meta["left_out"] == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"buckets": (8, 4)}, "config.data.buckets=.* needs lengths in rising order"),
        ({"batch_tokens": 0}, "config.data.batch_tokens=0: needs 1 or more"),
        ({"source": "web"}, "config.data.source='web': choose one of embedded, tsv, parallel"),
        ({"split": "none"}, "config.data.split='none': choose one of by_source, in_order"),
        ({"path": ""}, "config.data.path is not set"),
        (
            {"source": "embedded"},
            "config.data.path='p': the embedded sentences are no file. Read yours as the corpus tsv",
        ),
        (
            {"source": "embedded", "path": "", "languages": ("fr", "en")},
            r"config.data.languages=\('fr', 'en'\): the embedded sentences are \('en', 'fr'\) alone",
        ),
        ({"vocabulary": 4}, "config.data.vocabulary=4: needs more than 4; else every word would be <unk>"),
        (
            {"vocabulary": 0, "tokenizer": "bpe"},
            "config.data.vocabulary=0: needs more than 4; else every word would be <unk>",
        ),
        ({"tokenizer": "spacy", "joint_vocabulary": True}, "tokenizer='spacy' has rules for one language at a time"),
    ],
)
def test_a_wrong_choice_names_its_key(tmp_path, change, message):
    with pytest.raises(UserError, match=message):
        load_or_import(tmp_path / "data", config(**{"path": "p", **change}))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("on_long", ["truncate", "skip"])
def test_what_is_too_long_is_counted_by_split_and_what_is_bad_by_file(tmp_path, on_long):
    held_out = [("b", "x " * 9), ("c", "x"), ("d", "x " * 8), ("e", "")]
    paths = {
        "path": write(tmp_path / "train.txt", [*LONG, ("f", ""), ("g", "")]),
        "validation_path": write(tmp_path / "validation.txt", held_out),
    }
    meta = load_or_import(tmp_path / "data", config(**paths, max_length=6, on_long=on_long, on_bad_line="skip")).meta
    assert meta["too_long_by_split"] == {"train": 5, "validation": 2}
    assert meta["too_long"] == {"pairs": 7, "what": on_long}
    assert meta["pairs"] == ({"train": 5, "validation": 1} if on_long == "skip" else {"train": 10, "validation": 3})
    assert meta["bad_lines_by_file"] == {"validation": 1, "train": 2}
    assert meta["bad_lines"] == 3


def test_a_share_is_a_tenth_of_the_sentences_and_at_most_a_thousand():
    def pairs_of(count):
        return lambda: (Pair(f"word{i // 2} .", f"mot{i} .", f"f:{i}") for i in range(2 * count))  # two translations

    for count, share in ((3, 1), (40, 4), (2_999, 299), (10_000, 1_000), (12_345, 1_000)):
        assert sizes_of(pairs_of(count), SHARE, SHARE) == (share, share)
    assert sizes_of(pairs_of(40), SHARE, 0) == (4, 0)
    assert sizes_of(pairs_of(40), SHARE, SHARE, taken={"word0 .", "word1 .", "elsewhere"}) == (3, 3)


def test_a_size_that_is_given_is_taken_without_a_look_at_the_file():
    def read():
        raise AssertionError("was read")

    assert sizes_of(read, 1000, 0) == (1000, 0)
    published = [CORPORA[name] for name in ("embedded", "tatoeba_600", "tatoeba", "parallel", "tfds", "multi30k")]
    assert all(SHARE not in (corpus["validation"], corpus["test"]) for corpus in published)


def test_a_small_file_holds_out_a_share_and_what_holds_out_too_much_is_told(tmp_path, capsys):
    lines = "".join(f"word{i} here .\tmot{i} ici .\n" for i in range(60))
    (tmp_path / "pairs.txt").write_text(lines, encoding="utf-8")
    data = CORPORA["tsv"] | {"path": str(tmp_path / "pairs.txt"), "min_count": 1}
    meta = load_or_import(tmp_path / "share", DataConfig(**data)).meta
    assert meta["pairs"] == {"train": 48, "validation": 6, "test": 6}
    tell_held_out(meta, DataConfig(**data))
    assert not capsys.readouterr().err
    asked = DataConfig(**data | {"validation": 10, "test": 8})
    tell_held_out(load_or_import(tmp_path / "asked", asked).meta, asked)
    assert capsys.readouterr().err.startswith("warning: 30% of the pairs are held out. Lower --config.data.validation")


def test_the_embedded_corpus_is_the_published_one(tmp_path):
    meta = load_or_import(tmp_path / "data", DataConfig(**CORPORA["embedded"])).meta
    assert meta["fingerprint"] == "e12903626cfb24a366b4a93092e5790506981e972f12c168dcfd825e809306f9"


def test_a_sentence_is_found_whatever_the_case_the_spaces_and_the_marks_of_its_lines(tmp_path):
    lines = [('Say\u00a0"Hi" !', "x"), ('say "hi"!', "y"), ('SAY "HI"!', "z"), ("say hi!", "w"), ("b\\c", "v")]
    path = write(tmp_path / "p.txt", [*lines, *((f"a{i}", "u") for i in range(4))])
    load_or_import(tmp_path / "data", config(path=path))
    found = load_references(tmp_path / "data", ['say "hi" !', "b\\c", "absent"])
    assert sorted(sorted(each.targets) for each in found) == [["v"], ["x", "y", "z"]]
