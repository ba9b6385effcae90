"""Folders in object stores (gs://BUCKET/…): a copy here to work in, brought back there, and a lease in place of a lock.

A store has no lock, no rename and no append. A folder of one is *mounted*: its files are copied to a folder here, which
every mode works in as in any other; what changes is copied back every few seconds and in the end, `result.json` last.
Checkpoints are too large for that: they are read and written there (`training/storage.py`), by every host its own.
"""

import atexit
import contextlib
import functools
import json
import os
import shutil
import socket
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from attention_jax import hosts, stopping
from attention_jax.errors import NoAnswer, UserError, missing
from attention_jax.terminal import SHOWN_AS

SCHEME = "gs://"  # orbax writes arrays to no other kind of store
LEASE = ".lease"
ONLY_HERE = {".lock", LEASE, "data.partial", "checkpoints", "best"}  # names of files and folders that are not copied
FIRST, LAST = ("config.json",), ("meta.json", "result.json")  # what others need; what says that others are whole
BEAT, EXPIRES = 10.0, 60.0  # seconds between copies and renewals; after which a lease is nobody's

_mounts: dict[Path, "Mount"] = {}


def here(folder: str | os.PathLike[str]) -> Path:
    """A folder as one on this machine's disk: itself, or where a store's is mounted, as the store has it now.

    Raises NoAnswer for a store that cannot be read, UserError for another kind of store and a folder of other things.
    """
    if "://" not in os.fspath(folder):
        return Path(folder)
    address = os.fspath(folder).rstrip("/")
    mount = next((mount for mount in _mounts.values() if mount.address == address), None) or Mount(address)
    mount.pull()
    _mounts[mount.path] = mount
    SHOWN_AS[str(mount.path)] = address
    return mount.path


def there(path: Path) -> Any:
    """Where what is too large to copy lies: in the store, for a path in a mounted folder, else the path itself."""
    mount = mounted(path)
    return path if mount is None else mount.remote / path.relative_to(mount.path).as_posix()


def is_there(path: Any) -> bool:
    """Whether a path is one in a store."""
    return os.fspath(path).startswith(SCHEME)


def mounted(path: Path) -> "Mount | None":
    """The mount that a path lies in."""
    return next((mount for root, mount in _mounts.items() if path.is_relative_to(root)), None)


def settle(path: Any) -> None:
    """Bring back what was written so far to the store that a path is in, if it is in one."""
    for mount in _mounts.values():
        if os.fspath(path).startswith(os.fspath(mount.remote)):
            mount.push()


def files(folder: Any) -> Iterator[Any]:
    """Every file in a folder, here or in a store, and in the folders in it; none where there is no folder."""
    for child in sorted(folder.iterdir()) if folder.exists() else ():
        if child.is_dir():
            yield from files(child)
        else:
            yield child


@contextlib.contextmanager
def told(what: str) -> Iterator[None]:
    """Raise NoAnswer, one line, for an error of a store, of which every package has its own."""
    try:
        yield
    except (UserError, NoAnswer):
        raise
    except Exception as error:
        raise NoAnswer(f"{what} ({_line(error)}). The same command tries again.") from None


@contextlib.contextmanager
def working_in(path: Path, tell: Callable[[str], None]) -> Iterator[None]:
    """Have a mounted folder for this run alone, and what is written there brought back; other folders need neither.

    The first host holds the lease and writes. Raises UserError where another process works there, NoAnswer where the
    store does not take what was written: that is kept here then.
    """
    mount = mounted(path)
    if mount is None:
        yield
        return
    lease = Lease(mount, tell)
    hosts.by_first(lease.take)
    if not hosts.is_first():
        mount.pull()
        yield
        return
    try:
        with _repeated(lease.keep, "renewing a lease"):
            mount.pull()  # what another process has written since
            try:
                with _repeated(mount.keep(tell), "bringing back"):
                    yield
            finally:
                mount.bring_back(lease)
    finally:
        lease.release()
        del _mounts[path]


class _Known(NamedTuple):
    """A file that is there as it is here."""

    generation: bytes  # there
    state: tuple[int, int]  # here: time of change, size


class Mount:
    """A folder of a store, and the folder here that stands for it while this process lasts."""

    def __init__(self, address: str):
        self.address = address
        with told(f"{address}: cannot be read"):
            self.remote, self.objects = _opened(address)
        self._home = Path(tempfile.mkdtemp(prefix="attention_jax-"))
        self.path = self._home / self.remote.name
        self.path.mkdir()
        self._known: dict[str, _Known] = {}
        self._pushing = threading.Lock()
        self._remove = functools.partial(shutil.rmtree, self._home, ignore_errors=True)
        atexit.register(self._remove)

    def pull(self) -> None:
        """Copy here what is not here yet of the store's files."""
        with self._pushing, told(f"{self.address}: cannot be read"):
            names = self._names()
            for name in set(self._known) - set(names):
                (self.path / name).unlink(missing_ok=True)
                del self._known[name]
            for name in names:
                stopping.poll_alone()
                self._pull(name)

    def _names(self) -> list[str]:
        """What the store has of a run or sweep; of data, whose last file is missing where a kill came, all or none."""
        found = [key.decode() for key in self.objects.list().result()]
        names = [name for name in found if _is_copied(name)]
        if names and FIRST[0] not in names:
            raise UserError(f"{self.address}: is not empty and holds no run: choose another --workdir.")
        folders = {name: name.rpartition("/")[0] for name in names}
        return [name for name, of in folders.items() if "data" not in of.split("/") or f"{of}/meta.json" in folders]

    def _pull(self, name: str) -> None:
        known = self._known.get(name)
        found = self.objects.read(name, **({"if_not_equal": known.generation} if known else {})).result()
        if found.state != "value":
            return
        target = self.path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(found.value)
        self._known[name] = _Known(found.stamp.generation, _state(target))

    def push(self) -> None:
        """Copy what has changed here to the store, and remove there what was removed here."""
        with self._pushing:
            names = {path.relative_to(self.path).as_posix() for path in _own_files(self.path)}
            for name in sorted(set(self._known) - names, key=_rank, reverse=True):
                self.objects.write(name, None).result()
                del self._known[name]
            for name in sorted(names, key=_rank):
                self._push(name)

    def _push(self, name: str) -> None:
        path, known = self.path / name, self._known.get(name)
        try:
            state = _state(path)
            if known and known.state == state:
                return
            content = path.read_bytes()
        except FileNotFoundError:  # removed since
            return
        self._known[name] = _Known(self.objects.write(name, content).result().generation, state)

    def keep(self, tell: Callable[[str], None]) -> Callable[[], None]:
        """What is called again and again to bring back what was written; tells of the first failure in a row."""
        failed = False

        def push() -> None:
            nonlocal failed
            try:
                self.push()
                failed = False
            except Exception as error:
                if not failed:
                    tell(f"{self.address}: cannot be written ({_line(error)}); trying again")
                failed = True

        return push

    def bring_back(self, lease: "Lease") -> None:
        """Push for the last time. Raises NoAnswer, and keeps what is here, where that cannot be done."""
        atexit.unregister(self._remove)
        kept = f"what was written is kept in {os.fspath(self._home)!r}"
        with told(f"{self.address}: cannot be written; {kept}"):
            try:
                lease.renew()
            except UserError as error:
                raise UserError(f"{error} Here, {kept}.") from None
            self.push()
        self._remove()


class Lease:
    """The right to write in a folder of a store: a file that names who has it, written again and again.

    It is written only if nobody has written it since it was read, so that of two that take it at once one has it. One
    that has not changed for `EXPIRES` seconds is nobody's.
    """

    def __init__(self, mount: Mount, tell: Callable[[str], None]):
        self._objects, self._address, self._tell = mount.objects, mount.address, tell
        self._owner = {"machine": _machine(), "process": os.getpid(), "name": uuid.uuid4().hex}
        self._generation = b""

    def take(self) -> None:
        """Have the lease. Raises UserError where another process has it."""
        with told(f"{self._address}: cannot be written"):
            owner, self._generation = self._read()
            if owner is not None and not _is_gone(owner):
                self._tell(f"{self._address}: {_who(owner)} works there; waiting {EXPIRES:.0f} s for a sign of life")
                self._outlive()
            self.renew()

    def renew(self) -> None:
        """Write it again. Raises UserError where another process has it."""
        content = json.dumps({**self._owner, "beat": uuid.uuid4().hex}).encode()
        written = self._objects.write(LEASE, content, if_equal=self._generation).result().generation
        if written:
            self._generation = written
        elif (found := self._read())[0] and found[0].get("name") == self._owner["name"]:  # an answer was lost
            self._generation = found[1]
        else:
            raise UserError(self._refusal(found[0]))

    def keep(self) -> None:
        """Renew it, if the store answers; end the process where another has it: what is written there is another's."""
        try:
            self.renew()
        except UserError as error:
            self._tell(f"error: {error}")
            sys.stderr.flush()
            os._exit(1)
        except Exception:  # no answer: what cannot be pushed is told
            return

    def release(self) -> None:
        """Give it back."""
        with contextlib.suppress(Exception):  # it expires
            self._objects.write(LEASE, None, if_equal=self._generation).result()

    def _outlive(self) -> None:
        """Wait until the lease is nobody's. Raises UserError where its holder renews it."""
        until = time.monotonic() + EXPIRES
        while time.monotonic() < until:
            stopping.poll_alone()
            time.sleep(BEAT / 10)
            owner, generation = self._read()
            if generation != self._generation:
                if owner is not None:
                    raise UserError(self._refusal(owner))
                self._generation = generation
                return

    def _refusal(self, owner: dict[str, Any] | None) -> str:
        return f"{self._address}: in use by {_who(owner or {})}. Wait for it, or choose another --workdir."

    def _read(self) -> tuple[dict[str, Any] | None, bytes]:
        """Who has it (None: nobody, {}: somebody), and which writing of it that is."""
        found = self._objects.read(LEASE).result()
        owner: Any = None if found.state == "missing" else {}
        with contextlib.suppress(ValueError):
            owner = json.loads(found.value)
        return (owner if owner is None or isinstance(owner, dict) else {}), found.stamp.generation


@contextlib.contextmanager
def _repeated(work: Callable[[], None], name: str) -> Iterator[None]:
    """Call it every `BEAT` seconds in a thread."""
    over = threading.Event()

    def repeat() -> None:
        while not over.wait(BEAT):
            work()

    thread = threading.Thread(target=repeat, name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _opened(address: str) -> tuple[Any, Any]:
    """A folder of a store as a path, and as objects by their names in it.

    Raises UserError for a kind of store that checkpoints cannot be written to.
    """
    bucket, _, folder = address.removeprefix(SCHEME).partition("/")
    if not address.startswith(SCHEME) or not bucket or not folder:
        raise UserError(f"{address}: only {SCHEME}BUCKET/FOLDER is known of object stores. Choose another --workdir.")
    os.environ.setdefault("EPATH_USE_TF", "false")  # where TensorFlow is installed, too
    try:
        import gcsfs  # noqa: F401  # which epath needs
        import fsspec  # isort: skip
        import tensorstore
        from etils import epath
    except ModuleNotFoundError as error:
        raise UserError(f"{address}: {missing(error.name or '')}") from None
    fsspec.config.conf.setdefault("gs", {})["use_listings_cache"] = False  # others write there too
    objects = tensorstore.KvStore.open({"driver": "gcs", "bucket": bucket, "path": f"{folder}/"}).result()
    return epath.Path(address), objects


def _is_copied(name: str) -> bool:
    """Whether a file in a mounted folder is one that is copied."""
    return not (ONLY_HERE & set(name.split("/")) or name.endswith(("/", ".partial")))


def _own_files(folder: Path) -> Iterator[Path]:
    """What is copied of a folder here; what a link leads to, as a cell's data, lies elsewhere in it."""
    for child in folder.iterdir():
        if child.is_symlink() or not _is_copied(child.name):
            continue
        if child.is_dir():
            yield from _own_files(child)
        else:
            yield child


def _rank(name: str) -> tuple[int, str]:
    """In which order files are copied."""
    last = name.rpartition("/")[2]
    return (0 if last in FIRST else LAST.index(last) + 2 if last in LAST else 1), name


def _line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def _state(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_mtime_ns, found.st_size


def _machine() -> str:
    """What tells this machine, and in it the processes that this one sees, from others."""
    known = [socket.gethostname()]
    with contextlib.suppress(OSError):
        known += [Path("/proc/sys/kernel/random/boot_id").read_text().strip(), os.readlink("/proc/self/ns/pid")]
    return " ".join(known)


def _is_gone(owner: dict[str, Any]) -> bool:
    """Whether the holder of a lease was a process of this machine that has ended."""
    process, machine = owner.get("process"), _machine()
    if owner.get("machine") != machine or " " not in machine or not isinstance(process, int):
        return False
    return not Path(f"/proc/{process}").exists()


def _who(owner: dict[str, Any]) -> str:
    return f"process {owner.get('process', '?')} of {str(owner.get('machine', 'another machine')).partition(' ')[0]}"
