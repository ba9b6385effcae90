"""What is said of a command line that cannot be read, and of what goes wrong later."""

import pytest

from attention_jax.errors import UserError
from attention_jax.launcher import config_files
from attention_jax.launcher.messages import guarded, unreadable
from attention_jax.launcher.modes import outermost
from attention_jax.runs.config import flatten
from attention_jax.runs.keys import ABBREVIATIONS
from configs import nmt, positional_encoding

BAHDANAU = "configs/nmt.py:bahdanau,embedded"


def said(flag, config=BAHDANAU):
    key = flag.rpartition(".")[2]
    return unreadable(AttributeError(f"{key!r}"), ["launch.py", f"--config={config}", f"--config.{flag}=1"])


@pytest.mark.parametrize(
    ("flag", "meant"),
    [
        ("optimizer.lr", "learning_rate"),
        ("optimizer.wd", "weight_decay"),
        ("lr", "optimizer.learning_rate"),
        ("data.bs", "batch_tokens"),
        ("train.epochs", "steps"),
        ("seed", "seeds"),
        ("model.d_model", "model.kwargs.hidden"),
    ],
)
def test_what_a_key_is_called_elsewhere_leads_to_ours(flag, meant):
    assert said(flag) == f"--config.{flag}: the config has no {flag.rpartition('.')[2]!r}. Did you mean {meant!r}?"


def test_the_suggestion_is_of_the_config_that_is_named():
    assert said("data.bs", "configs/positional_encoding.py:core").endswith("Did you mean 'batch'?")


def test_every_abbreviation_leads_to_a_key_that_some_config_has():
    configs = (nmt.get_config("transformer_book,embedded"), nmt.get_config(), positional_encoding.get_config())
    keys = {key.rpartition(".")[2] for config in configs for key in flatten(config)}
    assert {name for names in ABBREVIATIONS.values() for name in names} <= keys


def test_what_nobody_calls_so_has_no_suggestion():
    assert said("xyzzy") == "--config.xyzzy: the config has no 'xyzzy'."


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (UserError("PATH: bad."), "error: PATH: bad."),
        (
            ModuleNotFoundError("No module named 'sacrebleu'", name="sacrebleu.metrics"),
            'error: sacrebleu is not installed, and is needed here: pip install "attention_jax[nmt]".',
        ),
    ],
)
def test_what_the_user_can_mend_is_told_in_one_line(error, line, capsys):
    def run(argv):
        raise error

    with pytest.raises(SystemExit, match="1"):
        guarded(run, [])
    assert capsys.readouterr().err == f"{line}\n"


def test_what_the_user_cannot_mend_is_not_hidden():
    def run(argv):
        raise ModuleNotFoundError("No module named 'other'", name="other")

    with pytest.raises(ModuleNotFoundError):
        guarded(run, [])


def test_of_a_result_of_many_numbers_the_outermost_are_told():
    few = ["test.beams.bleu", "loss", "test.bleu"]
    many = [f"heads.{layer}.{n}" for layer in range(8) for n in range(8)]
    assert outermost(few) == few
    assert outermost([*few, *many]) == [*few, *many[:57]]
    assert outermost([*many, *(f"m{n}" for n in range(100))]) == [f"m{n}" for n in range(60)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def get_config():\n    return {}[absent]\n", "{file}:2: NameError: name 'absent' is not defined."),
        ("def get_config():\n    return {}['absent']\n", "{file}:2: KeyError: 'absent'."),
        ("import absent\n", "{file}:1: ModuleNotFoundError: No module named 'absent'."),
        ("def get_config(:\n", "{file}:1: invalid syntax."),
        ("def get_config():\n    raise ValueError('choose a or b')\n", "choose a or b"),
    ],
)
def test_what_is_wrong_in_a_config_file_is_told_with_its_line(text, message, tmp_path):
    file = tmp_path / "own.py"
    file.write_text(text)
    with pytest.raises(Exception, match="absent|invalid|choose") as caught:
        config_files.config(str(file))
    assert unreadable(caught.value, ["launch.py", f"--config={file}"]) == message.format(file=file)
