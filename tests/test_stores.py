"""Folders of object stores: what is written is brought back, one process works there, trees are whole or not there."""

import contextlib
import threading

import jax
import numpy as np
import pytest
import tensorstore

from attention_jax import stores
from attention_jax.errors import NoAnswer, UserError
from attention_jax.terminal import printable
from attention_jax.training import storage
from attention_jax.training.checkpoints import Checkpoints

ADDRESS = "gs://bucket/runs/one"
LIKE = [{"w": np.zeros((40, 5), np.float32), "step": np.zeros((), np.int32)}]


@pytest.fixture
def store(tmp_path, monkeypatch):
    """A folder in the place of a store, which nothing renames anything in."""
    root = tmp_path / "store"

    def opened(address):
        folder = root / address.removeprefix(stores.SCHEME)
        return folder, tensorstore.KvStore.open({"driver": "file", "path": f"{folder}/"}).result()

    monkeypatch.setattr(stores, "_mounts", {})
    monkeypatch.setattr(stores, "_opened", opened)
    monkeypatch.setattr(stores, "is_there", lambda path: str(path).startswith(str(root)))
    for name, seconds in {"BEAT": 0.02, "EXPIRES": 0.3}.items():
        monkeypatch.setattr(stores, name, seconds)
    return root / "bucket/runs/one"


def names(folder):
    return sorted(path.relative_to(folder).as_posix() for path in stores.files(folder))


def lease(path):
    return stores.Lease(stores.mounted(path), lambda line: None)


def state(step):
    return [{"w": np.random.default_rng(step).normal(size=(40, 5)).astype(np.float32), "step": np.int32(step)}]


def checkpoints(told=None, **options):
    folder = stores.here(ADDRESS) / "checkpoints"
    return Checkpoints(folder, 3, (told if told is not None else []).append, **options)


def saved(*steps):
    written = checkpoints()
    for step in steps:
        written.save(step, state(step))
    written.close()


def read():
    """The newest checkpoint that can be read, and what was said on the way."""
    told = []
    found = checkpoints(told, read_only=True).restore(LIKE)
    jax.tree.map(np.testing.assert_array_equal, found.state, state(found.step))
    return found.step, told


def pushed(monkeypatch):
    """The names of what is pushed, in their order."""
    found, push = [], stores.Mount._push
    monkeypatch.setattr(stores.Mount, "_push", lambda mount, name: (found.append(name), push(mount, name)))
    return found


def test_what_is_written_is_in_the_store_in_the_end_and_what_tells_that_it_is_whole_comes_last(store, monkeypatch):
    order = pushed(monkeypatch)
    path = stores.here(ADDRESS)
    with stores.working_in(path, print):
        (path / "data").mkdir()
        for name in ("result.json", "data/meta.json", "data/train.npy", "report.html", "config.json"):
            (path / name).write_text(name)
        (path / "metrics.jsonl.partial").write_text("half")
    assert names(store) == ["config.json", "data/meta.json", "data/train.npy", "report.html", "result.json"]
    assert (store / "config.json").read_text() == "config.json"
    assert order[-5:] == ["config.json", "data/train.npy", "report.html", "data/meta.json", "result.json"]


def test_data_that_a_kill_left_in_part_are_not_read(store):
    (store / "data").mkdir(parents=True)
    (store / "config.json").write_text("{}")
    (store / "data" / "train.npy").write_text("tokens")
    assert names(stores.here(ADDRESS)) == ["config.json"]


def test_a_folder_of_other_things_is_not_copied(store):
    (store / "run").mkdir(parents=True)
    (store / "run" / "config.json").write_text("{}")
    with pytest.raises(UserError, match=f"{ADDRESS}: is not empty and holds no run: choose another --workdir"):
        stores.here(ADDRESS)


def test_what_the_store_has_is_here_and_what_is_removed_here_is_removed_there(store):
    store.mkdir(parents=True)
    (store / "result.json").write_text("before")
    (store / "config.json").write_text("{}")
    path = stores.here(ADDRESS)
    assert names(path) == ["config.json", "result.json"]
    (store / "more.txt").write_text("of another process, since")
    with stores.working_in(path, print):
        assert (path / "more.txt").exists()
        (path / "result.json").unlink()
    assert names(store) == ["config.json", "more.txt"]


def test_what_changes_is_brought_back_while_the_work_goes_on(store):
    path = stores.here(ADDRESS)
    with stores.working_in(path, print):
        (path / "metrics.jsonl").write_text("a line\n")
        seen = threading.Event()
        for _ in range(200):
            if (store / "metrics.jsonl").exists():
                break
            seen.wait(0.02)
        assert (store / "metrics.jsonl").read_text() == "a line\n"


def test_a_folder_is_opened_once_and_named_by_its_address(store):
    path = stores.here(ADDRESS)
    assert stores.here(ADDRESS + "/") == path
    assert path.name == "one"
    assert printable(f"{path}/report.html") == f"{ADDRESS}/report.html"


def test_what_the_store_does_not_take_is_kept_here_and_said_where(store, monkeypatch):
    path = stores.here(ADDRESS)

    def refused(mount, name):
        raise OSError("quota exceeded")

    with contextlib.ExitStack() as stack:
        stack.enter_context(stores.working_in(path, print))
        (path / "result.json").write_text("{}")
        monkeypatch.setattr(stores.Mount, "_push", refused)
        with pytest.raises(NoAnswer, match="cannot be written; what was written is kept in .*quota exceeded"):
            stack.close()
    assert (path / "result.json").exists()


def test_what_was_written_without_the_lease_is_kept_here_and_not_brought_back(store, monkeypatch):
    monkeypatch.setattr(stores, "BEAT", 1000)
    path = stores.here(ADDRESS)
    with contextlib.ExitStack() as stack:
        stack.enter_context(stores.working_in(path, print))
        (path / "config.json").write_text("late")
        (store / ".lease").write_text("{}")  # another's
        with pytest.raises(UserError, match="in use by process .* what was written is kept in"):
            stack.close()
    assert (path / "config.json").exists()
    assert names(store) == [".lease"]


def test_a_lease_that_lives_is_refused_and_one_that_does_not_is_taken(store, monkeypatch):
    monkeypatch.setattr(stores, "_is_gone", lambda found: False)
    path = stores.here(ADDRESS)
    first, second = lease(path), lease(path)
    first.take()
    over = threading.Event()

    def renew():
        while not over.wait(0.02):
            first.renew()

    beating = threading.Thread(target=renew)
    beating.start()
    with pytest.raises(UserError, match=f"{ADDRESS}: in use by process .* Wait for it, or choose another --workdir"):
        second.take()
    over.set()
    beating.join()
    second.take()
    with pytest.raises(UserError, match="in use by process"):
        first.renew()
    first.release()  # which is not its own any more
    second.renew()
    second.release()
    assert names(store) == []


def test_the_lease_of_a_process_of_this_machine_that_was_killed_is_taken_at_once(store, monkeypatch):
    monkeypatch.setattr(stores, "EXPIRES", 1000)
    path = stores.here(ADDRESS)
    killed = lease(path)
    killed._owner["process"] = 2**22 + 1  # more than a process has
    killed.take()
    lease(path).take()
    with pytest.raises(UserError, match="in use by process"):
        killed.renew()


def test_of_two_that_take_a_lease_at_once_one_has_it(store, monkeypatch):
    path = stores.here(ADDRESS)
    first, second = lease(path), lease(path)
    read = first._read

    def meanwhile():
        found = read()
        monkeypatch.setattr(first, "_read", read)
        second.take()  # after the first has read that nobody has it
        return found

    monkeypatch.setattr(first, "_read", meanwhile)
    with pytest.raises(UserError, match="in use by process"):
        first.take()
    second.renew()


def test_checkpoints_lie_in_the_store_and_are_whole_with_their_last_file(store):
    saved(10, 20)
    assert not (stores.here(ADDRESS) / "checkpoints").exists()
    assert read() == (20, [])
    (store / "checkpoints/20/about.json").unlink()  # as a kill leaves a tree that is being written
    assert read() == (10, [])
    saved(30)
    assert not (store / "checkpoints/20").exists() or not names(store / "checkpoints/20")
    assert read() == (30, [])


def test_a_damaged_checkpoint_of_a_store_is_passed_over_and_set_aside(store):
    saved(10, 20)
    file = max((store / "checkpoints/20/default").rglob("*"), key=lambda path: path.is_file() and path.stat().st_size)
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    step, (line,) = read()
    assert step == 10
    assert "20: cannot be read" in line
    written = checkpoints()
    assert written.restore(LIKE).step == 10
    written.save(20, state(20))
    written.close()
    assert read() == (20, [])
    assert (store / "checkpoints/20.unreadable").exists()


def test_a_checkpoint_is_there_once_what_it_needs_is(store):
    path = stores.here(ADDRESS)
    with stores.working_in(path, print):
        (path / "config.json").write_text("{}")
        saved(10)
        assert (store / "config.json").exists()


def test_a_store_that_does_not_answer_is_no_damage(store, monkeypatch):
    saved(10, 20)

    def digest(path):
        raise TimeoutError("503")

    monkeypatch.setattr(storage, "_digest", digest)
    with pytest.raises(NoAnswer, match=r"20: no answer \(503\). The same command tries again"):
        read()


def test_a_checkpoint_stays_where_removing_an_older_one_fails(store, monkeypatch):
    saved(10)
    written = checkpoints()
    monkeypatch.setattr(Checkpoints, "_forget", lambda self: 1 / 0)
    monkeypatch.setattr(written._storage, "wait", lambda: None)
    written._storage.write(
        store / "checkpoints/20", state(20), {"vocabulary": "", "best": [], "beside": None}, written._forget
    )
    with pytest.raises(NoAnswer, match="division by zero"):
        written.close()
    assert read() == (20, [])


@pytest.mark.parametrize("address", ["s3://bucket/run", "gs://", "http://host/run", "gs://bucket", "gs://bucket/"])
def test_other_addresses_are_refused_with_what_is_known(address):
    with pytest.raises(UserError, match=r"only gs://BUCKET/FOLDER is known of object stores. Choose another --workdir"):
        stores.here(address)
