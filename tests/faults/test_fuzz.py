"""Input of any kind: what reads it gives a result or one line for the user, and ends.

100 examples a test, always the same; ATTENTION_JAX_FUZZ=1000 (make fuzz) tries so many others.
"""

import contextlib
import copy
import io
import json
import os
import tempfile
from pathlib import Path

from attacked import DEEP
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import ROOT
from texts import BASE

from attention_jax.data.config import DataConfig
from attention_jax.data.corpus import load
from attention_jax.data.importing import load_or_import
from attention_jax.data.sources import BadLines, read_parallel, read_tsv
from attention_jax.data.text_importing import load_text
from attention_jax.data.text_sources import read_jsonl
from attention_jax.data.text_tokenizers import ByteTokenizer, CharacterTokenizer, load_text_tokenizer
from attention_jax.data.tokenizers import WordTokenizer, load_tokenizer
from attention_jax.errors import UserError
from attention_jax.launcher import flags
from attention_jax.runs.experiment import require_readable
from attention_jax.runs.folder import Run, read_config
from attention_jax.runs.lines import read_lines, read_whole
from attention_jax.sweeps.plan import read_plan
from attention_jax.terminal import STEERING, printable
from configs import nmt
from configs.nmt import CORPORA
from experiments.nmt import EXPERIMENT

ASKED = os.environ.get("ATTENTION_JAX_FUZZ")
settings.register_profile(
    "fuzz",
    max_examples=int(ASKED or 100),
    derandomize=ASKED is None,
    database=None,
    deadline=20_000,  # milliseconds: a hang
    suppress_health_check=[*HealthCheck],
)
settings.load_profile("fuzz")

# Text of what has broken readers before: ends of lines of every kind, halves of characters, marks, and the rare.
ODD = st.sampled_from(
    ["\t", "\n", "\r", "\0", "\u2028", "\x85", "\ufeff", "\u202e", "\x1b", " ", "é", "𝄞", "a", "▁", '"']
)
TEXT = st.lists(st.one_of(ODD, st.text(max_size=5)), max_size=30).map("".join)
BYTES = st.one_of(
    st.binary(max_size=200),
    TEXT.map(lambda text: text.encode("utf-8", "replace")),
    st.tuples(TEXT, st.binary(max_size=3)).map(lambda parts: parts[0].encode("utf-8", "replace") + parts[1]),
    st.sampled_from([DEEP, b"", b"\xef\xbb\xbf", b"\n" * 100, b"a\tb\n" * 50]),
)
LEAF = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8))
JSON = st.recursive(
    LEAF, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4)
)
SAID = st.one_of(BYTES, JSON.map(lambda value: json.dumps(value).encode()))


@contextlib.contextmanager
def refusing():
    """Within it, a UserError ends what is done, and any other error fails the test."""
    with contextlib.suppress(UserError):
        yield


@contextlib.contextmanager
def files(*contents):
    """Files of these contents."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"file{index}.en" for index, _ in enumerate(contents)]
        for path, content in zip(paths, contents, strict=True):
            path.write_bytes(content)
        yield paths


@given(BYTES, st.sampled_from(["error", "skip"]))
def test_tab_separated_lines(content, on_bad_line):
    with files(content) as (path,), refusing():
        for pair in read_tsv(path, BadLines(on_bad_line)):
            assert pair.source.strip()
            assert pair.target.strip()


@given(BYTES, BYTES, st.sampled_from(["error", "skip"]))
def test_parallel_files(source, target, on_bad_line):
    with files(source, target) as (one, other), refusing():
        other.rename(one.with_suffix(".fr"))
        list(read_parallel(one.with_suffix(""), ("en", "fr"), BadLines(on_bad_line)))


@given(st.lists(SAID, max_size=4))
def test_json_lines(lines):
    with files(b"\n".join(lines)) as (path,), refusing():
        assert all(chunk.text for chunk in read_jsonl(path, "text"))


@given(BYTES, st.sampled_from(["words", "bpe", "unigram"]), st.sampled_from(["truncate", "skip", "error"]))
def test_an_import_of_pairs(content, tokenizer, on_long):
    changes = {"min_count": 1, "tokenizer": tokenizer, "vocabulary": 60, "validation": 1, "test": 0, "max_length": 8}
    config = DataConfig(**CORPORA["tsv"])._replace(**changes, buckets=(4, 8), on_bad_line="skip", on_long=on_long)
    with files(content) as (path,), refusing():
        corpus = load_or_import(path.with_name("data"), config._replace(path=str(path)))
        assert load(path.with_name("data")).meta == corpus.meta
        for tokens in (corpus.splits["train"].source[index] for index in range(corpus.meta["pairs"]["train"])):
            assert tokens.max() < corpus.source.size


@given(BYTES, st.sampled_from(["characters", "bytes", "bpe", "unigram"]), st.sampled_from(["text", "jsonl"]))
def test_an_import_of_a_text(content, tokenizer, source):
    config = BASE._replace(tokenizer=tokenizer, source=source, vocabulary=300, held_out=0.2)
    with files(content) as (path,), refusing():
        text = load_text(path.with_name("data"), config._replace(path=str(path)))
        assert all(split.tokens.max() < text.vocabulary for split in text.splits.values())


PATHS = [
    (section, key)
    for section, own in nmt.get_config().to_dict().items()
    for key in (own if isinstance(own, dict) else [None])
]


@given(SAID)
def test_files_of_a_run_that_say_anything(content):
    with files(content) as (path,):
        for name in ("config.json", "result.json", "metrics.jsonl", "plan.json"):
            (path.parent / name).write_bytes(content)
        for read in (read_config, lambda folder: Run(folder, 0).result(), lambda folder: Run(folder, 0).metrics()):
            with refusing():
                read(path.parent)
        with refusing():
            read_plan(path.parent / "plan.json")


@given(st.sampled_from(PATHS), JSON)
def test_a_config_one_of_whose_values_is_anything(place, value):
    (section, key), config = place, copy.deepcopy(nmt.get_config().to_dict())
    owner, name = (config, section) if key is None else (config[section], key)
    owner[name] = value
    with files(json.dumps(config, default=list).encode()) as (path,), refusing():
        path.rename(path.with_name("config.json"))
        require_readable(EXPERIMENT, path.parent, read_config(path.parent))


@given(st.sampled_from(PATHS), st.one_of(TEXT, LEAF.map(str), JSON.map(str), st.sampled_from(["()", "(1,)", "1e999"])))
def test_values_on_the_command_line(place, value):
    name = ".".join(filter(None, place))
    argv = ["launch.py", f"--config={ROOT / 'configs/nmt.py'}:bahdanau,embedded", f"--config.{name}={value}"]
    told = io.StringIO()
    with contextlib.redirect_stderr(told), contextlib.suppress(SystemExit):
        flags.parse(argv)
        with refusing():
            EXPERIMENT.check(flags.CONFIG.value)
    assert told.getvalue() == "" or told.getvalue().startswith("error: ")


WORDS = WordTokenizer(["a", "cat", "é"])
CHARACTERS = CharacterTokenizer("abc é\n")


@given(BYTES)
def test_lines_to_translate_and_prompts(content):
    with files(content) as (path,), refusing():
        for line in read_lines(str(path)):
            WORDS.decode(WORDS.encode(line))
        whole = read_whole(str(path))
        for tokenizer in (CHARACTERS, ByteTokenizer()):
            ids, (length,) = tokenizer.encode_all([whole])
            assert len(ids) == length
            tokenizer.decode(ids)
        assert ByteTokenizer().decode(ByteTokenizer().encode_all([whole])[0]) == whole


@given(SAID, st.sampled_from(["words", "unigram", "bpe"]), st.sampled_from(["characters", "bytes", "unigram"]))
def test_vocabularies_that_say_anything(content, of_pairs, of_texts):
    with files(content) as (path,):
        with refusing():
            load_tokenizer(of_pairs, path, "en").encode("a cat")
        with refusing():
            load_text_tokenizer(of_texts, path).encode_all(["a cat"])


@given(st.text(st.characters(codec=None), max_size=50))
def test_what_a_terminal_is_shown_steers_nothing_and_keeps_everything_else(text):
    shown = printable(text)
    assert not STEERING.search(shown)
    shown.encode()
    assert STEERING.search(text) or shown == text
