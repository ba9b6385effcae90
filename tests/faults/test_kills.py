"""A run or sweep that is killed at a random moment goes on to what an unbroken one has."""

import pytest

from tests.faults import kills
from tests.faults.running import NAMES

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", NAMES)
def test_a_kill_at_any_moment_is_survived(tmp_path, name):
    found = kills.tried(tmp_path, 3, seed=1, names=(name,))
    assert len(found) >= 3
    assert not [each for each in found if each.wrong]
