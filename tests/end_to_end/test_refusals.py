"""Bad input through the real process: one clear line, a non-zero exit, nothing half-written, nothing lost."""

import json
import shutil
import subprocess
import time

import pytest

from attention_jax.data.corpus import digest_of
from attention_jax.data.tokenizers import split_words

GOOD = "Go now.\tVa !\n" * 30


def assert_refused(process, *messages):
    assert process.returncode == 1, (process.out, process.err)
    assert process.out == ""
    errors = [line for line in process.err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, process.err
    assert process.err.splitlines()[-1] == errors[0]
    assert "Traceback" not in process.err
    for message in messages:
        assert message in errors[0]


FILES = {
    "empty": (b"", ["pairs.txt: the file is empty", "manythings.org"]),
    "no_tab": (b"Go.\tVa !\nHi. Salut.\n", ["pairs.txt:2: no tab", "--config.data.on_bad_line=skip"]),
    "not_utf8": (b"Go.\tVa !\nCaf\xe9\tx\n", ["pairs.txt:2: not UTF-8"]),
}


@pytest.mark.parametrize("kind", FILES)
def test_a_file_that_cannot_be_used(launcher, tmp_path, kind):
    data, messages = FILES[kind]
    launcher.pairs.write_bytes(data)
    assert_refused(launcher.run(tmp_path / "w"), *messages)
    assert not (tmp_path / "w").exists()


VALUES = {
    "missing_file": (
        {"data__path": "/absent/fra.txt"},
        ["/absent/fra.txt: no such file", "manythings.org", "data.path"],
    ),
    "only_unknown": ({"data__min_count": 999}, ["config.data.min_count=999", "<unk>"]),
    "too_long": (
        {"data__max_length": 4},
        ["pairs.txt:1:", "config.data.max_length=4", "--config.data.on_long=truncate"],
    ),
    "bucket": ({"data__max_length": 40}, ["config.data.max_length=40", "config.data.buckets"]),
    "misspelt": ({"train__stepz": 3}, ["--config.train.stepz", "Did you mean 'steps'?"]),
    "unknown": ({"xyzzy": 3}, ["--config.xyzzy: the config has no 'xyzzy'"]),
    "abbreviated": ({"optimizer__lr": 3}, ["--config.optimizer.lr: the config has no 'lr'", "mean 'learning_rate'?"]),
    "elsewhere": ({"batch_size": 3}, ["--config.batch_size: the config has no", "mean 'data.batch_tokens'?"]),
    "wrong_type": ({"train__steps": "many"}, ["--config.train.steps=many", "int"]),
    "model": ({"model__name": "rnn"}, ["config.model.name='rnn'", "recurrent, transformer"]),
    "kwargs": ({"model__kwargs__output": "wide"}, ["config.model.kwargs.output='wide'", "state, deep"]),
    "schedule": ({"optimizer__schedule": "step"}, ["config.optimizer.schedule='step'", "cosine"]),
    "optimizer": ({"optimizer__name": "rmsprop"}, ["config.optimizer.name='rmsprop'", "adam, adamw, sgd, lion"]),
    "of_another": ({"optimizer__momentum": 0.9}, ["config.optimizer.momentum=0.9: adam has none", "b1, b2, eps"]),
    "best_by": ({"train__best_by": "bleu"}, ["config.train.best_by='bleu'", "validation.bleu"]),
    "dtype": ({"precision__dtype": "float33"}, ["config.precision.dtype='float33'", "bfloat16"]),
    "matmul": ({"precision__matmul": "best"}, ["config.precision.matmul='best'", "highest"]),
    "seeds": ({"seeds": "()"}, ["config.seeds is empty"]),
    "same_seed": ({"seeds": "(1,1)"}, ["config.seeds=(1, 1)", "same seed twice"]),
    "large_seed": ({"seeds": "(2147483648,)"}, ["config.seeds=(2147483648,)", "from 0 to 2147483647"]),
    "odd_seed": ({"seeds": "('a',)"}, ["config.seeds=('a',)", "whole numbers"]),
    "warmup": (
        {"optimizer__warmup_steps": 41},
        ["config.optimizer.warmup_steps=41 is more than config.train.steps=40"],
    ),
    "warmup_of_a_decay": (
        {"optimizer__warmup_steps": 30, "optimizer__decay_steps": 20, "optimizer__schedule": "linear"},
        ["config.optimizer.warmup_steps=30 is more than config.optimizer.decay_steps=20"],
    ),
    "no_steps": ({"train__steps": 0}, ["config.train.steps=0", "1 or more"]),
    "no_log": ({"train__log_every": 0}, ["config.train.log_every=0", "1 or more"]),
    "dropout": ({"optimizer__dropout": 1.5}, ["config.optimizer.dropout=1.5", "less than 1"]),
    "clip": ({"optimizer__clip_norm": 0.0}, ["config.optimizer.clip_norm=0", "nothing would be learnt"]),
    "negative": ({"data__validation": -2}, ["config.data.validation=-2", "0 or more"]),
    "hidden": ({"model__kwargs__hidden": 0}, ["config.model.kwargs.hidden=0: needs 1 or more"]),
    "no_validation": (
        {"data__validation": 0},
        ["config.train.best_by='validation.bleu'", "choose one of train.nll, train.loss"],
    ),
    "nothing_fits": ({"data__max_length": 2, "data__on_long": "skip"}, ["config.data.max_length=2", "Raise it"]),
    "vocabulary": ({"data__vocabulary": 4}, ["config.data.vocabulary=4", "<unk>"]),
    "folder": ({"data__path": "/tmp"}, ["/tmp: a folder"]),
    "init_from": ({"train__init_from": "/absent"}, ["config.train.init_from='/absent': holds no run"]),
    "tokenizer": ({"data__tokenizer": "chars"}, ["config.data.tokenizer='chars'", "words, spacy, moses, unigram, bpe"]),
    "pieces": ({"data__tokenizer": "bpe", "data__vocabulary": 9}, ["config.data.vocabulary=9: "]),
    "parallel": ({"data__source": "parallel"}, ["pairs.txt.en: no such file", "PATH.en and PATH.fr"]),
    "last_of_best": ({"evaluate__last": 2}, ["config.evaluate.last=2: is for", "average or ensemble"]),
    "joint": ({"data__tokenizer": "spacy", "data__joint_vocabulary": True}, ["config.data.joint_vocabulary=True"]),
    "bleu_tokens": (
        {"evaluate__bleu_tokens": "char"},
        ["config.evaluate.bleu_tokens='char'", "13a, words, spacy, moses"],
    ),
    "combine": ({"evaluate__combine": "sum"}, ["config.evaluate.combine='sum'", "best, average, ensemble, seeds"]),
    "average": (
        {
            "config": "configs/nmt.py:transformer_book,embedded",
            "model__kwargs__norm": "batch",
            "evaluate__combine": "average",
        },
        ["config.evaluate.combine='average'", "batch norm", "Choose ensemble"],
    ),
    "beams": ({"evaluate__beams": 0}, ["config.evaluate.beams=0: needs 1 or more"]),
    "n_best": (
        {"evaluate__beams": 2, "evaluate__n_best": 3},
        ["config.evaluate.n_best=3: needs 1 to config.evaluate.beams=2"],
    ),
    "drawn": (
        {"evaluate__temperature": 1.0, "evaluate__beams": 2},
        ["config.evaluate.temperature=1.0: draws words", "Set temperature=0 or beams=1"],
    ),
    "top_p": ({"evaluate__top_p": 0.0}, ["config.evaluate.top_p=0.0: needs more than 0"]),
    "not_drawn": (
        {"evaluate__top_k": 5},
        ["config.evaluate.top_k=5: is for drawing words", "Set config.evaluate.temperature"],
    ),
    "heads": (
        {"config": "configs/nmt.py:transformer_book,embedded", "model__kwargs__heads": 5},
        ["config.model.kwargs.heads=5: must divide width=32"],
    ),
    "tfds": (
        {"data__source": "tfds:wmt14_translat/de-en", "data__path": ""},
        ["tfds:wmt14_translat/de-en: no such data set", "nearest are wmt14_translate"],
    ),
    "last": ({"evaluate__last": 3}, ["config.evaluate.last=3", "needs 1 to 2"]),
    "layer": (
        {"evaluate__alignment_layer": 1},
        ["config.evaluate.alignment_layer=1: needs -1 to 0", "decoder has 1"],
    ),
    "nan": ({"optimizer__learning_rate": 1e30}, ["seed 0", "not finite at step 2", "learning_rate"]),
}


@pytest.mark.parametrize("kind", VALUES)
def test_a_value_that_cannot_be_used(launcher, tmp_path, kind):
    overrides, messages = VALUES[kind]
    assert_refused(launcher.run(tmp_path / "w", **overrides), *messages)
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("configs/nmt.py:bahdanu,tsv ", "it is MODEL,CORPUS. Models are seq2seq, bahdanau"),
        ("configs/kernel_regression.py:sine", "choose one of sine_power"),
        (
            "configs/absent.py",
            "configs/absent.py: no such config; there are configs/attention_variants.py, configs/benchmark.py",
        ),
    ],
)
def test_a_config_that_does_not_exist(launcher, tmp_path, config, message):
    assert_refused(launcher.run(tmp_path / "w", config=config), message)
    assert not (tmp_path / "w").exists()


def test_flags_that_say_nothing(launcher, tmp_path):
    assert_refused(launcher.run(tmp_path / "w", config=None), "no run here", "--config=configs/")
    assert_refused(launcher.run(tmp_path / "w", "--mode=evaluate"), "no run here")
    assert_refused(launcher.run(tmp_path / "w", "--mode=trian"), "--mode=trian", "train|evaluate")
    assert_refused(launcher.run(tmp_path / "w", "stray"), "stray: not a flag")
    for flags, told in {
        ("--mode=sweep", "--debug_nans"): "--debug_nans: is for --mode=train, and this is sweep.",
        ("--sweep=models",): "--sweep: is for --mode=sweep or plan, and this is train.",
        ("--mode=evaluate", "--output=out.txt"): "--output: is for --mode=translate or generate or compare or prepare",
        ("--mode=translate", "--reference=ref.txt"): "--reference: is for --mode=evaluate, and this is translate.",
    }.items():
        assert_refused(launcher.run(tmp_path / "w", *flags), told)
    assert not (tmp_path / "w").exists()


def test_bad_lines_are_skipped_and_counted_when_the_config_says_so(launcher, tmp_path):
    with open(launcher.pairs, "ab") as file:
        file.write(b"no tab here\n\xff\xfe\tx\n")
    process = launcher.run(tmp_path / "w", data__on_bad_line="skip", train__steps=2)
    assert process.returncode == 0, process.err
    assert "skipped 2 bad lines, first" in process.err
    assert "pairs.txt:61, " in process.err


@pytest.mark.slow
def test_truncation_is_counted_and_told(launcher, tmp_path):
    process = launcher.run(tmp_path / "w", data__on_long="truncate", data__max_length=6, train__steps=2)
    assert process.returncode == 0, process.err
    lines = launcher.pairs.read_text(encoding="utf-8").splitlines()
    lengths = [[len(split_words(side)) + 1 for side in line.split("\t")] for line in lines]
    count = sum(max(pair) > 6 for pair in lengths)
    assert f"truncated {count} pairs longer than config.data.max_length" in process.err


def test_a_workdir_of_another_config(finished):
    launcher, folder, _ = finished
    before = {path: path.read_bytes() for path in folder.glob("*.json*")}
    process = launcher.run(folder, optimizer__learning_rate=0.5)
    assert_refused(process, "optimizer.learning_rate: 0.002 there, 0.5 now", "another --workdir")
    assert {path: path.read_bytes() for path in folder.glob("*.json*")} == before


def test_a_workdir_in_use(launcher, tmp_path):
    running = launcher.start(tmp_path / "w", train__steps=100000)
    while not (tmp_path / "w" / "config.json").exists():
        assert running.poll() is None
        time.sleep(0.05)
    try:
        assert_refused(launcher.run(tmp_path / "w", train__steps=100000), f"in use by process {running.pid}")
    finally:
        running.kill()
        running.communicate()


def test_a_value_that_replaces_a_runs_own_is_not_taken_for_another_versions(finished):
    launcher, folder, _ = finished
    process = launcher.run(folder, "--mode=evaluate", "--config.evaluate.beams=0", config="")
    assert process.returncode == 1
    assert process.err.startswith("error: config.evaluate.beams=0: ")


def test_a_loss_that_is_not_finite_keeps_the_last_good_checkpoint(finished, tmp_path):
    launcher, folder, _ = finished
    shutil.copytree(folder, tmp_path / "w")
    config = json.loads((tmp_path / "w" / "config.json").read_text())
    config["optimizer"]["learning_rate"] = 1e30  # as if the run had come so far with it
    (tmp_path / "w" / "config.json").write_text(json.dumps(config))
    process = launcher.run(tmp_path / "w", optimizer__learning_rate=1e30, train__steps=60)
    assert_refused(process, "not finite at step 42; the checkpoint of step 40 is kept")
    assert (tmp_path / "w" / "checkpoints" / "40").is_dir()


def test_a_vocabulary_that_is_missing_or_of_another_run(finished, tmp_path):
    launcher, folder, _ = finished
    shutil.copytree(folder, tmp_path / "w")
    vocabulary = tmp_path / "w" / "data" / "source.vocabulary"
    vocabulary.write_text(vocabulary.read_text().replace("boy", "girl"))
    process = launcher.run(tmp_path / "w", "--mode=evaluate", config="")
    assert_refused(process, f"{vocabulary}: not the vocabulary this run was trained with")
    meta = json.loads((tmp_path / "w" / "data" / "meta.json").read_text())
    meta["vocabulary_digests"][0] = digest_of(vocabulary)  # as if the whole folder were of another run
    del meta["digests"]["meta.json"]
    (tmp_path / "w" / "data" / "meta.json").write_text(json.dumps(meta))
    process = launcher.run(tmp_path / "w", "--mode=evaluate", config="")
    assert_refused(
        process, f"{tmp_path / 'w' / 'checkpoints'}: trained with another vocabulary than the run's data has"
    )
    vocabulary.unlink()
    assert_refused(launcher.run(tmp_path / "w", "--mode=evaluate", config=""), f"{vocabulary}: missing")


def test_data_that_were_damaged_are_named_and_imported_again_once_they_are_removed(finished, tmp_path):
    launcher, folder, _ = finished
    shutil.copytree(folder, tmp_path / "w")
    data = tmp_path / "w" / "data"
    before = launcher.run(tmp_path / "w", "--mode=evaluate", config="")
    tokens = data / "validation.source.npy"
    tokens.write_bytes(tokens.read_bytes()[:-1] + b"\1")
    process = launcher.run(tmp_path / "w", "--mode=evaluate", config="")
    assert_refused(process, f"{tokens}: damaged", f"Remove the folder {data}, and the run's next command")
    shutil.rmtree(data)
    again = launcher.run(tmp_path / "w", "--mode=evaluate", config="")
    assert (again.returncode, again.out) == (0, before.out)


def test_a_run_of_another_version_is_refused_by_every_mode_that_reads_it(finished, tmp_path):
    launcher, folder, _ = finished
    shutil.copytree(folder, tmp_path / "w")
    config = json.loads((tmp_path / "w" / "config.json").read_text())
    del config["evaluate"]["n_best"]
    (tmp_path / "w" / "config.json").write_text(json.dumps(config))
    commit = json.loads((tmp_path / "w" / "result.json").read_text())["code"]["commit"]
    told = ("w: started by another version", "the config has no 'evaluate.n_best'", f"git checkout {commit}")
    for mode in ("evaluate", "translate", "describe", "report", "train"):
        assert_refused(launcher.run(tmp_path / "w", f"--mode={mode}", config=""), *told)
    overridden = ("--mode=evaluate", "--config.evaluate.beams=2")
    assert_refused(launcher.run(tmp_path / "w", *overridden, config=""), *told)
    assert_refused(launcher.run(tmp_path / "w"), "evaluate.n_best: nothing there, 1 now")


def test_nothing_to_translate(finished, tmp_path):
    launcher, folder, _ = finished
    (tmp_path / "empty.txt").write_text("")
    for name, message in (
        ("absent.txt", "no such file"),
        ("empty.txt", "empty.txt: empty, not a line to read"),
    ):
        process = launcher.run(folder, "--mode=translate", f"--input={tmp_path / name}", config="")
        assert_refused(process, message)
    assert_refused(launcher.run(tmp_path / "w", "--mode=translate", config=""), "no run here")
    process = launcher.run(folder, "--mode=translate", f"--input={tmp_path}", config="")
    assert_refused(process, f"{tmp_path}: a folder, and a file is needed")
    absent = tmp_path / "absent" / "out.txt"
    process = launcher.run(folder, "--mode=translate", f"--output={absent}", config="")
    assert_refused(process, f"--output={absent}: there is no folder {absent.parent}")
    process = launcher.run(folder, "--mode=translate", f"--output={tmp_path}", config="")
    assert_refused(process, f"--output={tmp_path}: is a folder: name a file.")
    process = launcher.run(folder, "--mode=translate", "--config.train.steps=7", config="")
    assert_refused(process, "train.steps: 40 there, 7 now")
    process = launcher.run(tmp_path / "w", "--mode=translate", "--config.evaluate.beams=2", config="")
    assert_refused(process, "no run here")


def test_a_line_that_cannot_be_read_comes_after_the_translations_of_those_before_it(finished, tmp_path):
    launcher, folder, _ = finished
    (tmp_path / "latin.txt").write_bytes(b"a cat\nun gar\xe7on\n")
    process = launcher.run(folder, "--mode=translate", f"--input={tmp_path / 'latin.txt'}", config="")
    assert process.returncode == 1
    assert len(process.out.splitlines()) == 1
    assert process.err.splitlines()[-1] == f"error: {tmp_path / 'latin.txt'}:2: not UTF-8."


def test_files_that_cannot_be_measured(finished, tmp_path):
    launcher, folder, _ = finished
    source, target = tmp_path / "test.en", tmp_path / "test.fr"
    source.write_text("a cat sleeps .\nthe cat .\n")
    flags = ("--mode=evaluate", f"--input={source}", f"--reference={target}")
    assert_refused(launcher.run(folder, *flags, config=""), f"{target}: no such file")
    assert_refused(launcher.run(folder, *flags[:2], config=""), "name both, --input=FILE and --reference=FILE")
    target.write_text("un chat dort .\n")
    assert_refused(launcher.run(folder, *flags, config=""), f"{source} has 2 lines and {target} 1")
    target.write_text("un chat dort .\n\n")
    assert_refused(launcher.run(folder, *flags, config=""), f"{target}:2: an empty sentence")


@pytest.mark.slow
def test_a_checkpoint_that_cannot_be_read(finished, tmp_path):
    launcher, folder, _ = finished
    shutil.copytree(folder, tmp_path / "w")
    newest = tmp_path / "w" / "checkpoints" / "40"
    for path in newest.rglob("*"):
        if path.is_file():
            path.write_bytes(b"")
    process = launcher.run(tmp_path / "w", train__steps=44)
    assert process.returncode == 0, process.err
    assert f"{newest}: cannot be read" in process.err
    assert "resuming at step 32" in process.err
    assert "Traceback" not in process.err


@pytest.mark.slow
@pytest.mark.parametrize("size", ["24k", "400k", "1500k"])
def test_a_full_disk(launcher, tmp_path, size):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", disk], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a small disk needs root")
    try:
        process = launcher.run(disk / "w", model__kwargs__hidden=64)
        assert_refused(process, "disk full", "free some space and run the same command again")
        assert "Traceback" not in process.err
        assert not (disk / "w" / "result.json").exists()
        subprocess.run(["mount", "-o", "remount,size=60m", disk], check=True)
        again = launcher.run(disk / "w", model__kwargs__hidden=64)
        assert again.returncode == 0, again.err
    finally:
        subprocess.run(["umount", "-l", disk], check=True)
