"""Where a config file is found."""

import pytest

from attention_jax.errors import UserError
from attention_jax.launcher import config_files


def test_a_file_of_the_working_folder_goes_before_the_checkouts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ours = config_files.find("configs/nmt.py")
    assert config_files.config(ours, "seq2seq,embedded").model.kwargs.attends == "never"
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "nmt.py").write_text("def get_config():\n    return 3\n")
    assert config_files.find("configs/nmt.py") == "configs/nmt.py" != ours
    assert config_files.config("configs/nmt.py") == 3


@pytest.mark.parametrize("file", ["configs/absent.py", "configs", "configs/nmt", "nmt.txt"])
def test_what_is_no_config_file_is_refused_with_those_there_are(file):
    with pytest.raises(
        UserError, match=f"{file}: no such config; there are configs/attention_variants.py, configs/benchmark.py, "
    ):
        config_files.find(file)


def test_a_config_that_builds_on_another_takes_the_file_beside_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = config_files.config(config_files.find("configs/sequence_layers.py"), "translation")
    assert config.model.name == "transformer"


def test_what_a_search_draws_from_is_a_files_search(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert {*config_files.search(config_files.find("configs/nmt.py"), "bahdanau,embedded")} == {
        "optimizer.learning_rate",
        "optimizer.dropout",
    }
    with pytest.raises(UserError, match=r"kernel_regression.py: has no search\(\), the draws that --mode=search tries"):
        config_files.search(config_files.find("configs/kernel_regression.py"))


@pytest.mark.parametrize(
    ("made", "kind"), [("{'train.steps': (1, 2)}", "dict"), ("(one for one in ())", "generator"), ("['a=1']", "list")]
)
def test_a_sweep_that_is_no_list_of_overrides_is_refused(made, kind, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(f"def sweep():\n    return {made}\n")
    with pytest.raises(UserError, match=rf"mine.py: sweep\(\) gives a {kind}, and a list of overrides is needed"):
        config_files.space(str(file))


def test_a_sweep_that_needs_a_name_says_so(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("def sweep(name):\n    return []\n")
    with pytest.raises(UserError, match=r"sweep\(name\) has no value for 'name': give --sweep=NAME"):
        config_files.space(str(file))
