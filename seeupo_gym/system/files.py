"""Files that are always whole: a reader, or a run that ends right now, finds the old content or the new one."""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedRandom
from pathlib import Path
from typing import IO

from filelock import FileLock, Timeout

if sys.platform != "win32":
    import fcntl

LOCK_FILE = ".lock"

_PREFIX, _SUFFIX = ".seeupo-", ".tmp"


@contextmanager
def open_atomically(path: str | Path) -> Iterator[IO[bytes]]:
    """
    Open a file for writing whose content takes the place of the old one at the end, when it is on the disk.

    On any exception the old content stays. The file that a killed process was writing is removed by the next call for
    the same folder.

    :param path: the file; its folder is made if it is missing
    :return: the file, open for writing and reading
    :raises OSError: if it cannot be written; says which
    """
    target = Path(os.path.realpath(path))  # a link stays a link
    if target.exists() and not target.is_file():  # a device, which has no old content; a folder is refused here
        with target.open("wb") as device:
            yield device
        return
    with _clear_errors(path):
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(target.parent)
        file = _open_temporary(target.parent)
        try:
            if target.exists():
                if not os.access(target, os.W_OK):
                    raise PermissionError(errno.EACCES, "the file is read-only")
                shutil.copymode(target, file.name)
            yield file
            file.flush()
            os.fsync(file.fileno())
            if sys.platform == "win32":
                file.close()  # where an open file has no other name
            os.replace(file.name, target)
        except BaseException:
            with suppress(OSError):
                os.unlink(file.name)
            raise
        finally:
            with suppress(OSError):  # on a full disk, of what is not written yet
                file.close()
        _sync_folder(target.parent)


def write_atomically(path: str | Path, text: str) -> None:
    """
    Write a text file; see :func:`open_atomically`.

    :param path: the file; its folder is made if it is missing
    :param text: its new content
    """
    with open_atomically(path) as file:
        file.write(text.encode())


@contextmanager
def replace_files(folder: str | Path) -> Iterator[Path]:
    """
    Lend an empty folder; at the end its files take their places in another one, when all of them are on the disk.

    On any exception before that the files that were there stay.

    :param folder: where the files are to be; it is made if it is missing
    :return: the folder to write to
    :raises OSError: if they cannot be written; says where
    """
    target = Path(os.path.realpath(folder))
    with _clear_errors(folder):
        target.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(target)
        lent = target / _temporary_name()
        lent.mkdir()
        try:
            with _held(lent):
                yield lent
                written = [path for path in lent.rglob("*") if path.is_file()]
                for path in written:
                    with path.open("rb") as file:
                        os.fsync(file.fileno())
                for path in written:
                    place = target / path.relative_to(lent)
                    place.parent.mkdir(parents=True, exist_ok=True)
                    os.replace(path, place)
        finally:
            shutil.rmtree(lent, ignore_errors=True)
        _sync_folder(target)


@contextmanager
def locked(folder: str | Path) -> Iterator[None]:
    """
    Keep other runs, of this process or another one, out of a folder; the lock of a process that is dead does not count.

    :param folder: the folder; it is made if it is missing
    :raises ValueError: if another run has the folder
    """
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path / LOCK_FILE)
    with suppress(NotImplementedError):  # a file system without locks
        try:
            lock.acquire(timeout=0)
        except Timeout as error:
            raise ValueError(f"another run is writing to {folder}: wait for it, or choose another folder") from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _clear_errors(path: str | Path) -> Iterator[None]:
    before = sys.exc_info()[1]  # when a model is saved because something failed
    try:
        yield
    except Exception as error:
        # What writes archives tries to finish them, and fails again, whatever it was that stopped it.
        origin = next(
            (e for e in _history(error, before) if isinstance(e, OSError) or not isinstance(e, Exception)), error
        )
        if origin is error and not isinstance(error, OSError):
            raise
        if not isinstance(origin, OSError):
            raise origin from None
        text = f"cannot write {path}: {origin.strerror or origin}; what was there before is unchanged"
        raise (OSError(text) if origin.errno is None else OSError(origin.errno, text)) from origin


def _history(error: BaseException, until: BaseException | None) -> list[BaseException]:
    """List an exception and those during whose handling it was raised, the first one first."""
    history: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current is not until:
        history.insert(0, current)
        current = current.__context__
    return history


def _temporary_name() -> str:
    return f"{_PREFIX}{secrets.token_hex(8)}{_SUFFIX}"


def _open_temporary(folder: Path) -> BufferedRandom:
    """Open a new file that is locked as long as it is open, by which others know that it is in use."""
    while True:
        file = (folder / _temporary_name()).open("x+b")
        if sys.platform == "win32":
            return file
        with suppress(OSError):  # a file system without locks, where nobody can take it for a leftover either
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(file.fileno()).st_nlink > 0:
            return file
        file.close()  # another process took it for a leftover, in the moment before it was locked


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """Lock a folder, by which others know that it is in use."""
    if sys.platform == "win32":
        yield
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _remove_leftovers(folder: Path) -> None:
    """Remove what processes that are dead were writing."""
    if sys.platform == "win32":
        return
    for path in folder.glob(f"{_PREFIX}*{_SUFFIX}"):
        with suppress(OSError):  # in use, or removed by another process at this moment
            descriptor = os.open(path, os.O_RDONLY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()
            finally:
                os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    """Have the names of a folder's files on the disk too."""
    if sys.platform == "win32":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # a file system that cannot, or need not
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
