"""Folders in object stores (gs://BUCKET/…): a copy here to work in, brought back there, and a lease in place of a lock.

A store has no lock, no rename and no append. A folder of one is *mounted*: its files are copied to a folder here, which
every mode works in as in any other; what changes is copied back every few seconds and in the end, `result.json` last.
Checkpoints are too large for that: they are read and written there (`training/storage.py`), by every host its own.
"""

import atexit
import contextlib
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
from typing import Any

from attention_jax import hosts
from attention_jax.errors import UserError

SCHEME = "gs://"  # orbax writes arrays to no other kind of store
LEASE = ".lease"
ONLY_HERE = {".lock", LEASE, "data.partial", "checkpoints", "best"}  # names of files and folders that are not copied
BEAT, EXPIRES, SETTLES = 10.0, 60.0, 2.0  # seconds between copies; until a lease is nobody's; for two to see each other

_mounts: dict[Path, "Mount"] = {}


def here(folder: str | os.PathLike[str]) -> Path:
    """A folder as one on this machine's disk: itself, or where a store's is mounted.

    Raises UserError for a store that cannot be read, and for one of another kind.
    """
    address = os.fspath(folder)
    if "://" not in address:
        return Path(address)
    for path, mount in _mounts.items():
        if mount.address == address.rstrip("/"):
            return path
    mount = Mount(address.rstrip("/"))
    _mounts[mount.path] = mount
    mount.pull()
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


def named(text: str) -> str:
    """A text with the addresses of mounted folders in place of where they are mounted."""
    for path, mount in _mounts.items():
        text = text.replace(str(path), mount.address)
    return text


def files(folder: Any) -> Iterator[Any]:
    """Every file in a folder, here or in a store, and in the folders in it; none where there is no folder."""
    for child in sorted(folder.iterdir()) if folder.exists() else ():
        if child.is_dir():
            yield from files(child)
        else:
            yield child


@contextlib.contextmanager
def working_in(path: Path, tell: Callable[[str], None]) -> Iterator[None]:
    """Have a mounted folder for this run alone, and what is written there brought back; other folders need neither.

    The first host holds the lease and writes. Raises UserError where another process works there, and where the store
    does not take what was written: that is kept here then.
    """
    mount = mounted(path)
    if mount is None:
        yield
        return
    lease = Lease(mount, tell)
    hosts.by_first(lease.take)
    mount.pull()  # what another process has written since
    if not hosts.is_first():
        yield
        return
    keeper = _Keeper(mount, lease, tell)
    keeper.start()
    try:
        yield
    finally:
        keeper.stop()
        mount.bring_back()
        lease.release()


class Mount:
    """A folder of a store, and the folder here that stands for it while this process lasts."""

    def __init__(self, address: str):
        self.address, self.remote = address, _remote(address)
        self._home = Path(tempfile.mkdtemp(prefix="attention_jax-"))
        self.path = self._home / self.remote.name
        self.path.mkdir()
        self._known: dict[str, tuple[int, int]] = {}  # what is there as it is here: time of change, size
        self.is_kept = False
        atexit.register(self._end)

    def pull(self) -> None:
        """Copy the store's files here; data that are here already are what they were."""
        with _told(f"{self.address}: cannot be read"):
            there_are = {path.relative_to(self.remote).as_posix(): path for path in self._files(self.remote)}
        for name in set(self._known) - set(there_are):
            (self.path / name).unlink(missing_ok=True)
            del self._known[name]
        for name, remote in there_are.items():
            if name in self._known and name.startswith("data/"):
                continue
            target = self.path / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with _told(f"{remote}: cannot be read"):
                _copy(remote, target)
            self._known[name] = _state(target)

    def push(self) -> None:
        """Copy what has changed here to the store, `result.json` last, and remove there what was removed here."""
        found = {path.relative_to(self.path).as_posix(): path for path in self._files(self.path)}
        for name in sorted(set(self._known) - set(found), key=_is_result, reverse=True):
            (self.remote / name).unlink(missing_ok=True)
            del self._known[name]
        for name in sorted(found, key=_is_result):
            with contextlib.suppress(FileNotFoundError):  # removed here since
                state = _state(found[name])
                if self._known.get(name) != state:
                    (self.remote / name).parent.mkdir(parents=True, exist_ok=True)
                    _copy(found[name], self.remote / name)
                    self._known[name] = state

    def bring_back(self) -> None:
        """Push for the last time. Raises UserError, and keeps what is here, where the store does not take it."""
        self.is_kept = True
        with _told(f"{self.address}: cannot be written; what was written is kept in {os.fspath(self._home)!r}"):
            self.push()
        self.is_kept = False

    def _files(self, folder: Any) -> Iterator[Any]:
        for child in folder.iterdir() if folder.exists() else ():
            if child.name in ONLY_HERE or child.name.endswith(".partial"):
                continue
            if child.is_dir():
                yield from self._files(child)
            else:
                yield child

    def _end(self) -> None:
        if not self.is_kept:
            shutil.rmtree(self._home, ignore_errors=True)


class Lease:
    """The right to write in a folder of a store: a file that names who has it, written again and again.

    One that has not changed for `EXPIRES` seconds is nobody's. Two that take it at once both write, wait, and read who
    was last.
    """

    def __init__(self, mount: Mount, tell: Callable[[str], None]):
        self._file, self._address, self._tell = mount.remote / LEASE, mount.address, tell
        self._owner = {"host": socket.gethostname(), "process": os.getpid(), "name": uuid.uuid4().hex}
        self._beats = 0

    def take(self) -> None:
        """Have the lease. Raises UserError where another process has it."""
        with _told(f"{self._address}: cannot be written"):
            found = self._read()
            if found is not None and not _is_gone(found):
                self._tell(f"{self._address}: {_who(found)} works there; waiting {EXPIRES:.0f} s for a sign of life")
                self._outlive(found)
            self._write()
            time.sleep(SETTLES)
            if not self.is_own():
                raise UserError(self._refusal(self._read()))

    def renew(self) -> None:
        """Write it again. Raises UserError where another process has it."""
        if not self.is_own():
            raise UserError(self._refusal(self._read()))
        self._write()

    def release(self) -> None:
        """Give it back."""
        with contextlib.suppress(Exception):  # it expires
            if self.is_own():
                self._file.unlink(missing_ok=True)

    def is_own(self) -> bool:
        """Whether this process has it."""
        return (self._read() or {}).get("name") == self._owner["name"]

    def _outlive(self, found: dict[str, Any]) -> None:
        until = time.monotonic() + EXPIRES
        while time.monotonic() < until:
            time.sleep(BEAT / 10)
            now = self._read()
            if now is None:
                return
            if now != found:
                raise UserError(self._refusal(now))

    def _refusal(self, found: dict[str, Any] | None) -> str:
        return f"{self._address}: in use by {_who(found or {})}. Wait for it, or choose another --workdir."

    def _read(self) -> dict[str, Any] | None:
        """Who has it; None: nobody, {}: somebody."""
        try:
            found = json.loads(self._file.read_bytes())
        except FileNotFoundError:
            return None
        except ValueError:
            found = None
        return found if isinstance(found, dict) else {}

    def _write(self) -> None:
        self._beats += 1
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps({**self._owner, "beats": self._beats}), encoding="utf-8")


class _Keeper:
    """Renews a lease and brings back what was written, while a run goes on."""

    def __init__(self, mount: Mount, lease: Lease, tell: Callable[[str], None]):
        self._mount, self._lease, self._tell = mount, lease, tell
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="bringing back", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _keep(self) -> None:
        is_told = False
        while not self._over.wait(BEAT):
            try:
                self._lease.renew()
                self._mount.push()
                is_told = False
            except UserError as error:  # what is written there now is another's
                self._tell(f"error: {error}")
                sys.stderr.flush()
                os._exit(1)
            except Exception as error:
                if not is_told:
                    self._tell(f"{self._mount.address}: cannot be written ({_line(error)}); trying again")
                is_told = True


def _remote(address: str) -> Any:
    """A store's folder. Raises UserError for a kind of store that checkpoints cannot be written to."""
    if not address.startswith(SCHEME) or not address.removeprefix(SCHEME).strip("/"):
        raise UserError(f"{address}: only {SCHEME}BUCKET/FOLDER is known of object stores. Choose another --workdir.")
    try:
        import fsspec
        import gcsfs  # noqa: F401
        from etils import epath
    except ModuleNotFoundError as error:
        raise UserError(f"{address}: needs the package {error.name}: pip install 'attention-jax[gcs]'.") from None
    fsspec.config.conf.setdefault("gs", {})["use_listings_cache"] = False  # others write there too
    return epath.Path(address)


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """An error of a store, of which every package has its own, as one line."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{what} ({_line(error)}). Try again.") from None


def _line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def _copy(source: Any, target: Any) -> None:
    with source.open("rb") as read, target.open("wb") as written:
        shutil.copyfileobj(read, written, 2**20)


def _state(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_mtime_ns, found.st_size


def _is_result(name: str) -> bool:
    return name.rpartition("/")[2] == "result.json"


def _is_gone(found: dict[str, Any]) -> bool:
    """Whether the holder of a lease was a process of this machine that has ended."""
    if found.get("host") != socket.gethostname() or not isinstance(found.get("process"), int):
        return False
    return not Path(f"/proc/{found['process']}").exists() and Path("/proc/self").exists()


def _who(found: dict[str, Any]) -> str:
    return f"process {found.get('process', '?')} of {found.get('host', 'another machine')}"
