"""Files in untrusted places: no link is followed, no pipe waited for, no more read than expected."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
from collections.abc import Iterable, Iterator
from contextlib import suppress
from io import BufferedReader, BufferedWriter, FileIO
from pathlib import Path
from typing import Any

from hookline.trainer.errors import UserError

MAX_BYTES = 10 * 2**20
"""The largest file that is read as a whole by default."""
MAX_LINE = 2**20
MAX_DEPTH = 100
"""How deep JSON and YAML may be nested: code that walks them stays below Python's recursion limit."""


def open_file(path: Path | str, *, follow: bool = False) -> BufferedReader:
    """Open an ordinary file for reading."""
    return os.fdopen(_descriptor(path, os.O_RDONLY, follow=follow), "rb")


def open_new(path: Path) -> BufferedWriter:
    """Open a new file for writing; anything of that name, such as a link, is removed first."""
    with suppress(FileNotFoundError):
        os.unlink(path)
    return os.fdopen(_descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb")


def open_append(path: Path) -> FileIO:
    """Open an ordinary file for writing at its end, without a buffer; it is made if it is missing."""
    return os.fdopen(_descriptor(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab", buffering=0)


def open_lock(path: Path) -> int:
    """Return the descriptor of an ordinary file to be locked, which is made if it is missing."""
    return _descriptor(path, os.O_RDWR | os.O_CREAT)


def write_whole(path: Path, content: str | bytes | Iterable[bytes | memoryview]) -> None:
    """Write a file whole or not at all: under another name first, synced, then renamed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    pieces = [content.encode()] if isinstance(content, str) else [content] if isinstance(content, bytes) else content
    try:
        with open_new(temporary) as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    finally:
        with suppress(OSError):
            temporary.unlink()


def sync_folder(path: Path) -> None:
    """Return when the names in a folder are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Make a folder and its parents if they are missing."""
    path.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        raise _link(path)


def is_own_folder(path: Path) -> bool:
    """Return whether a path is a folder itself, and no link to one."""
    return path.is_dir() and not path.is_symlink()


def remove(path: Path) -> None:
    """Remove a file, a link, or a folder with all that is in it; what links in it lead to stays."""
    if is_own_folder(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def check_folders(directory: Path, key: str) -> None:
    """Refuse a directory with links to folders below it: writes and removals there would happen elsewhere."""
    waiting = [str(directory)] if directory.is_dir() else []
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_symlink() and entry.is_dir():
                        raise UserError(
                            f"{key}={directory} holds a link to a folder elsewhere: {entry.path}. Expected folders of "
                            "its own: put the folder itself in its place, if you trust it."
                        )
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except OSError as error:
            raise UserError(f"{key}={directory} cannot be read: {error.strerror}. Expected a readable one.") from error


def read_bytes(path: Path, limit: int = MAX_BYTES, *, follow: bool = False) -> bytes:
    """Return what an ordinary file holds."""
    with open_file(path, follow=follow) as file:
        if os.fstat(file.fileno()).st_size > limit:
            raise OSError(errno.EFBIG, f"it is larger than {limit:,} bytes", str(path))
        return file.read()


def read_text(path: Path, limit: int = MAX_BYTES) -> str:
    """Return the text of an ordinary file in UTF-8."""
    return read_bytes(path, limit).decode()


def read_json(path: Path, limit: int = MAX_BYTES) -> Any:
    """Return what a JSON file holds."""
    return parse_json(read_bytes(path, limit))


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of an ordinary file with their line ends, one at a time; a line without end comes in pieces."""
    with open_file(path) as file:
        while line := file.readline(MAX_LINE):
            yield line.decode(errors="replace")


def parse_json(text: str | bytes, **options: Any) -> Any:
    """Return what a JSON text holds."""
    try:
        value = json.loads(text, **options)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    level, depth = _containers([value]), 0
    while level:
        if (depth := depth + 1) > MAX_DEPTH:
            raise ValueError("nested too deeply")
        level = [each for node in level for each in _containers(node.values() if isinstance(node, dict) else node)]
    return value


def _containers(values: Iterable[Any]) -> list[dict[str, Any] | list[Any]]:
    return [each for each in values if isinstance(each, (dict, list))]


def _descriptor(path: Path | str, flags: int, *, follow: bool = False) -> int:
    """Open a file without waiting for the other end of a pipe."""
    try:
        descriptor = os.open(path, flags | (0 if follow else os.O_NOFOLLOW) | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if os.path.islink(path) and not follow:
            raise _link(path) from error
        raise
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is not an ordinary file", str(path))


def _link(path: Path | str) -> OSError:
    return OSError(errno.ELOOP, "it is a symbolic link", str(path))
