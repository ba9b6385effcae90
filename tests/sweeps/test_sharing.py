"""Two processes on one sweep: who finds the rest taken waits for it, and does what the other leaves."""

import contextlib
import threading

from sweeper import sweep_of

from attention_jax.runs.folder import hold
from attention_jax.sweeps import sharing


def test_what_another_process_works_on_is_waited_for_and_what_it_leaves_is_done(tmp_path, monkeypatch, capsys):
    sweep = sweep_of(tmp_path, {1.0: {0: 0.1}, 0.5: {0: 0.4}})
    result = sweep.cell(next(iter(sweep.plan.cells))) / "result.json"
    whole, times = result.read_text(), []
    result.unlink()
    other = contextlib.ExitStack()
    other.enter_context(hold(tmp_path / "waves" / "program-0"))

    def work(given, rungs):
        times.append(given)
        if len(times) == 1:
            threading.Timer(0.5, other.close).start()  # killed, its cell not done
        else:
            result.write_text(whole)

    monkeypatch.setattr(sharing, "work", work)
    sharing.share_work(sweep)
    assert times == [sweep, sweep]
    assert "another process works on what is left" in capsys.readouterr().err


def test_nothing_is_waited_for_where_a_cell_failed_or_all_are_done(tmp_path, monkeypatch):
    sweep = sweep_of(tmp_path, {1.0: {0: 0.1}})
    times = []
    monkeypatch.setattr(sharing, "work", lambda given, rungs: times.append(given))
    with hold(tmp_path / "waves" / "program-0"):
        sharing.share_work(sweep)
    assert times == [sweep]
