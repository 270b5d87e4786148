"""Safe access to files in untrusted places: links are not followed, pipes do not block, reads are bounded."""

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
"""The deepest nesting allowed in JSON and YAML, so that code that walks them stays below Python's recursion limit."""


def open_file(path: Path | str, *, follow: bool = False) -> BufferedReader:
    """Open a regular file for reading."""
    return os.fdopen(_descriptor(path, os.O_RDONLY, follow=follow), "rb")


def open_new(path: Path) -> BufferedWriter:
    """Open a new file for writing, after removing anything of that name, such as a link."""
    with suppress(FileNotFoundError):
        os.unlink(path)
    return os.fdopen(_descriptor(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb")


def open_append(path: Path) -> FileIO:
    """Open a regular file for unbuffered appending; create it if it is missing."""
    return os.fdopen(_descriptor(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab", buffering=0)


def open_lock(path: Path) -> int:
    """Return the descriptor of a regular file to lock; create it if it is missing."""
    return _descriptor(path, os.O_RDWR | os.O_CREAT)


def write_whole(path: Path, content: str | bytes | Iterable[bytes | memoryview]) -> None:
    """Write a file atomically: under a temporary name, synced, then renamed."""
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
    """Sync the entries of a folder to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(path: Path) -> None:
    """Create a folder and its parents if they are missing; refuse a link."""
    path.mkdir(parents=True, exist_ok=True)
    if path.is_symlink():
        raise _link(path)


def is_own_folder(path: Path) -> bool:
    """Return whether a path is a folder, not a link to one."""
    return path.is_dir() and not path.is_symlink()


def remove(path: Path) -> None:
    """Remove a file, a link, or a folder with its contents; the targets of links are left alone."""
    if is_own_folder(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def check_folders(directory: Path, key: str) -> None:
    """Refuse a directory that contains links to folders: writes and removals there would happen elsewhere."""
    waiting = [str(directory)] if directory.is_dir() else []
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_symlink() and entry.is_dir():
                        raise UserError(
                            f"{key}={directory} contains a link to a folder: {entry.path}. Replace the link with the "
                            "folder itself if you trust it."
                        )
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except OSError as error:
            raise UserError(f"{key}={directory} cannot be read: {error.strerror}. Expected a readable one.") from error


def read_bytes(path: Path, limit: int = MAX_BYTES, *, follow: bool = False) -> bytes:
    """Return the contents of a regular file of at most `limit` bytes."""
    with open_file(path, follow=follow) as file:
        if os.fstat(file.fileno()).st_size > limit:
            raise OSError(errno.EFBIG, f"it is larger than {limit:,} bytes", str(path))
        return file.read()


def read_text(path: Path, limit: int = MAX_BYTES) -> str:
    """Return the text of a regular UTF-8 file of at most `limit` bytes."""
    return read_bytes(path, limit).decode()


def read_json(path: Path, limit: int = MAX_BYTES) -> Any:
    """Return the contents of a JSON file."""
    return parse_json(read_bytes(path, limit))


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a regular file, with their line ends; a line longer than `MAX_LINE` bytes comes in pieces."""
    with open_file(path) as file:
        while line := file.readline(MAX_LINE):
            yield line.decode(errors="replace")


def parse_json(text: str | bytes, **options: Any) -> Any:
    """Parse JSON; raise a `ValueError` if it is invalid or nested too deeply."""
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
    """Open a regular file, without blocking on a pipe, and return its descriptor."""
    try:
        descriptor = os.open(path, flags | (0 if follow else os.O_NOFOLLOW) | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if os.path.islink(path) and not follow:
            raise _link(path) from error
        raise
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise OSError(errno.EINVAL, "it is not a regular file", str(path))


def _link(path: Path | str) -> OSError:
    return OSError(errno.ELOOP, "it is a symbolic link", str(path))
