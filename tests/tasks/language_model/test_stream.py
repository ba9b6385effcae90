"""A text as a source: what a batch holds, and figures that are those of a loop in float64."""

import functools
import math

import jax
import numpy as np
import pytest
from support import drawn
from texts import DOCUMENTS, write_folder, write_jsonl

from attention_jax.data.text import Counts
from attention_jax.data.tokenizers import EOS, PAD
from attention_jax.errors import UserError
from attention_jax.tasks.language_model import stream
from attention_jax.tasks.language_model.measuring import figures_of
from attention_jax.tasks.language_model.session import Session
from attention_jax.tasks.language_model.stream import OPENERS, evaluate_file
from configs.language_model import get_config

SMALL = {
    "model.layers": 1, "model.width": 8, "model.heads": 2, "model.kv_heads": 2, "model.feed_forward": 8,
    "data.length": 16, "data.batch": 3, "evaluate.batch": 4, "train.steps": 8, "train.steps_per_call": 4,
}  # fmt: skip


def opened(tmp_path, **overrides):
    config = get_config("cpu,characters")
    if "data__path" not in overrides:
        (tmp_path / "text.txt").write_text("".join(DOCUMENTS), encoding="utf-8")
        config.data.path = str(tmp_path / "text.txt")
    values = SMALL | {name.replace("__", "."): value for name, value in overrides.items()}
    config.update_from_flattened_dict(values)
    return Session(config.lock(), tmp_path / "data", OPENERS)


def variables_of(session):
    return drawn(session.init)


def nats(session, variables, tokens, target):
    """−log p of a target after its context, in float64."""
    padded = np.pad(np.array([tokens]), ((0, 0), (0, 16 - len(tokens))))
    logits = np.asarray(_apply(session.model)(variables, padded)[0, len(tokens) - 1], np.float64)
    return np.log(np.exp(logits - logits.max()).sum()) + logits.max() - logits[target]


@functools.cache
def _apply(model):
    return jax.jit(model.apply)


@pytest.mark.parametrize(("length", "stride"), [(0, 0), (8, 3)])
def test_figures_are_those_of_a_loop_over_a_running_text(tmp_path, length, stride):
    session = opened(tmp_path, evaluate__length=length, evaluate__stride=stride, data__held_out=0.03)
    variables = variables_of(session)
    split, size = session.source.text.splits["validation"], length or 16
    text = [EOS, *split.tokens.tolist()]
    starts = np.minimum(np.arange(0, len(split.tokens) - size + (stride or size), stride or size), len(text) - 1 - size)
    starts = [start for start in dict.fromkeys(starts.tolist()) if start >= 0]
    total, counted = 0.0, 0
    for start in starts:
        for target in range(counted, start + size):
            total += nats(session, variables, text[start : target + 1], text[target + 1])
        counted = start + size
    assert counted == len(split.tokens)
    found, counts = session.measure(variables, session.config)["validation"], split.counts
    assert found["loss"] == pytest.approx(total / counted, rel=1e-5)
    assert found["perplexity"] == pytest.approx(math.exp(total / counted), rel=1e-5)
    assert found["perplexity_per_word"] == pytest.approx(math.exp(total / counts.words), rel=1e-4)
    assert found["bits_per_byte"] == pytest.approx(total / math.log(2) / counts.bytes, rel=1e-5)


def test_packed_documents_are_measured_each_alone(tmp_path):
    path = write_jsonl(tmp_path / "all.jsonl", DOCUMENTS)
    session = opened(
        tmp_path,
        data__path=path,
        data__source="jsonl",
        data__packing="documents",
        data__length=200,
        data__held_out=0.05,
    )
    variables, split = variables_of(session), session.source.text.splits["validation"]
    total = 0.0
    for start, end in zip(split.documents[:-1], split.documents[1:], strict=True):
        document = [EOS, *split.tokens[start:end].tolist()]
        assert document[-1] == EOS
        padded = np.pad(np.array([document[:-1]]), ((0, 0), (0, 200 - len(document[:-1]))))
        logits = np.asarray(_apply(session.model)(variables, padded)[0, : len(document) - 1], np.float64)
        chosen = np.take_along_axis(logits, np.array(document[1:])[:, None], -1)[:, 0]
        total += (np.log(np.exp(logits).sum(-1)) - chosen).sum()
    found = session.measure(variables, session.config)["validation"]
    assert found["loss"] == pytest.approx(total / len(split.tokens), rel=1e-5)


@pytest.mark.parametrize("packing", ["windows", "documents"])
def test_a_call_holds_its_own_rows_and_only_those(tmp_path, packing):
    path = write_folder(tmp_path / "texts", DOCUMENTS)
    session = opened(tmp_path, data__path=path, data__packing=packing)
    call = session.source.batches(3, 5, 8)
    assert call.rows.shape == (3, 3)
    read = call.read(call.rows)
    assert {part.shape for part in read.values()} == {(3, 3, 16)}
    assert ("segments" in read) == (packing == "documents") == session.source.has_segments
    alone = session.source.batches(3, 6, 7)
    texts = session.source.texts({name: part[1] for name, part in read.items()}, {})
    np.testing.assert_array_equal(texts.tokens, alone.read(alone.rows)["tokens"][0])
    np.testing.assert_array_equal(texts.is_counted, np.asarray(texts.targets) != PAD)
    np.testing.assert_array_equal(
        texts.tokens[:, 1:][texts.is_counted[:, 1:]], texts.targets[:, :-1][texts.is_counted[:, 1:]]
    )


def test_while_training_a_part_is_measured_and_at_the_end_all(tmp_path):
    session = opened(tmp_path, evaluate__tokens=64)
    variables = variables_of(session)
    part = session.measure_so_far(variables, session.config)["validation"]
    first = next(stream._in_order(session.config, session.source.text.splits["validation"]))
    nats, count = session.total(variables, [first])
    assert count == 64
    assert part == figures_of(nats, count, session.source.text.splits["validation"].counts)
    assert part != session.measure(variables, session.config)["validation"]


def test_another_text_is_tokenized_as_the_one_that_was_trained_on(tmp_path):
    session = opened(tmp_path)
    variables, text = variables_of(session), "the end of ζ ω.\n" * 9
    (tmp_path / "other.txt").write_text(text, encoding="utf-8")
    (found,) = evaluate_file(session, [variables], str(tmp_path / "other.txt"))
    assert (found["tokens"], found["words"], found["bytes"]) == (len(text), 45, len(text.encode()))
    assert found["unknown"] == 18
    of_parts = figures_of(found["loss"] * len(text), len(text), Counts(1, len(text.encode()), 0, 45, len(text), 0))
    assert {name: found[name] for name in of_parts} == pytest.approx(of_parts)
    for content, message in ((b"", "none.txt: the file is empty"), (b"\xef\xbb\xbf", "none.txt: is empty. Give")):
        (tmp_path / "none.txt").write_bytes(content)
        with pytest.raises(UserError, match=message):
            evaluate_file(session, [variables], str(tmp_path / "none.txt"))


def test_figures_of_a_text_of_one_endless_word_are_not_finite_and_one_of_none_has_no_words():
    found = figures_of(5.0 * 1000, 1000, Counts(1, 1000, 1000, 1, 1000, 0))
    assert found["perplexity_per_word"] == math.inf
    assert "perplexity_per_word" not in figures_of(5.0, 10, Counts(1, 10, 10, 0, 10, 0))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"data.packing": "rows"}, "config.data.packing='rows': choose one of windows, documents"),
        ({"data.packing": "documents"}, "config.data.packing='documents': one text file has no documents"),
        ({"data.source": "csv"}, "config.data.source='csv': choose one of text, jsonl, tfds"),
        ({"data.batch": 0}, "config.data.batch=0: needs 1 or more"),
        ({"evaluate.batch": 0}, "config.evaluate.batch=0: needs 1 or more"),
        ({"evaluate.stride": 17}, "config.evaluate.stride=17: is more than a window's 16 tokens"),
        ({"evaluate.tokens": -1}, "config.evaluate.tokens=-1: needs 0 or more"),
        (
            {"model.positions": "learned", "model.max_length": 16, "evaluate.length": 32},
            "config.model.positions='learned': has positions for 16 tokens, not for 32. Raise config.model.max_length "
            ".*, or lower config.data.length=16 and config.evaluate.length=32",
        ),
        (
            {"model.score": "location:longest=8"},
            "config.model.score='location:longest=8': has room for 8 tokens, not for 16. Raise its option longest, or "
            "lower config.data.length=16 and config.evaluate.length=0",
        ),
        ({"model.score": "dot", "model.mixer": "gru"}, "config.model.score='dot': mixer='gru' has no attention"),
        ({"data.length": 10_000_000}, "config.data.length=10000000: the training text has only .* tokens"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_key(tmp_path, overrides, message):
    with pytest.raises(UserError, match=message):
        opened(tmp_path, **{name.replace(".", "__"): value for name, value in overrides.items()}).check()


def test_layers_that_would_mix_documents_are_refused(tmp_path):
    path = write_folder(tmp_path / "texts", DOCUMENTS)
    session = opened(tmp_path, data__path=path, data__packing="documents", model__mixer="gru", model__positions="none")
    with pytest.raises(UserError, match=r"config.model.mixer='gru': reads each row as one text.*packing=windows"):
        session.check()


def test_a_file_is_measured_whole_whatever_share_of_the_training_text_is_held_out(tmp_path):
    for name in ("train", "held_out", "other"):
        (tmp_path / f"{name}.txt").write_text("".join(DOCUMENTS), encoding="utf-8")
    paths = {"data__path": str(tmp_path / "train.txt"), "data__validation_path": str(tmp_path / "held_out.txt")}
    session = opened(tmp_path, **paths, data__held_out=0.0)
    (found,) = evaluate_file(session, [variables_of(session)], str(tmp_path / "other.txt"))
    assert found["bytes"] == len("".join(DOCUMENTS).encode())


def test_a_score_by_where_a_key_stands_is_refused_in_packed_rows(tmp_path):
    path = write_folder(tmp_path / "texts", DOCUMENTS)
    session = opened(tmp_path, data__path=path, data__packing="documents", model__score="location")
    with pytest.raises(UserError, match=r"config.model.score='location': scores a key by where it stands in its row"):
        session.check()
