"""Two tiny finished runs of translation, of the seeds 0 and 1, that several tests read."""

import pytest
from sweeper import Sweeper, train


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    """A folder with runs/mine and runs/other, which learns faster; and what made them."""
    folder = tmp_path_factory.mktemp("opened")
    sweeper = Sweeper(folder)
    (folder / "runs").mkdir()
    for name, rate in (("mine", 1e-3), ("other", 1e-2)):
        config = sweeper.config("transformer_book", seeds=(0, 1), optimizer__learning_rate=rate)
        train(config, folder / "runs" / name)
    return folder, sweeper
