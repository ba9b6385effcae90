"""What the tests of a process share: runs that nothing disturbs are made once."""

import pytest

from tests.faults.running import Subjects


@pytest.fixture(scope="session")
def subjects(tmp_path_factory):
    """The small runs and sweeps that are killed and stopped."""
    return Subjects(tmp_path_factory.mktemp("subjects"))
