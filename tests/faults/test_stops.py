"""A process that is asked to stop ends in time, well and without leaving half of anything, whatever it is at."""

import pytest

from tests.faults import stops

CASES = {f"{case.name}, {case.phase} {' '.join(case.flags)}": case for case in stops.CASES}


@pytest.mark.slow
@pytest.mark.parametrize("number", range(2))
def test_a_stop_is_heard_in_every_phase(tmp_path, number):
    own = stops.CASES[number::2]
    found = stops.tried(tmp_path, own, (stops.SIGNALS[number],))
    assert not [one for one in found if one.wrong]
    assert len(found) >= 0.7 * len(own)  # the shortest phases end before they are seen


@pytest.mark.slow
@pytest.mark.parametrize("how", ["SIGINT", "SIGHUP", "SIGUSR2"])
def test_workers_end_with_the_process_that_awaits_them(tmp_path, how):
    (found,) = stops.tried(tmp_path, [CASES["sweep processes, awaiting workers "]], (how,))
    assert not found.wrong
