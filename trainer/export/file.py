"""Exported files and directories: written beside their place, put there whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trainer.errors import UserError
from trainer.export.formats import MARK, Format
from trainer.files import sync_folder


def check_place(path: Path, form: Format, *, overwrite: bool) -> None:
    """Refuse a place where the export cannot go.

    A directory is replaced only where it is a SavedModel itself: nothing else of the user's is ever removed.

    Args:
        path: to write to.
        form: of what is written.
        overwrite: whether what is there is replaced.

    Raises:
        UserError: something is there already, the name has another ending, or nobody may write there.
    """
    if not form.is_directory and not path.name.endswith(form.suffix):
        raise UserError(
            f"output={path} received. Expected a file that ends with {form.suffix}, such as model{form.suffix}."
        )
    same = path.is_dir() and (path / MARK).is_file() if form.is_directory else path.is_file()
    if os.path.lexists(path) and not (same and overwrite):
        raise UserError(f"{path} exists already. Expected another output{', or overwrite=true' if same else ''}.")
    parent = next(each for each in path.absolute().parents if each.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise UserError(f"{path} cannot be written: {parent} is not a directory that can be written to. Give another.")


@contextmanager
def put_in_place(path: Path, form: Format) -> Iterator[Path]:
    """Give a name to write to, and put what is written there in place at the end of the block; on an error, nothing.

    Args:
        path: checked by `check_place`.
        form: of what is written.

    Raises:
        UserError: the place cannot be written to.
    """
    is_new, folder = not path.parent.exists(), None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))  # nobody else's
        yield folder / path.name
        _sync(folder / path.name)
        _exchange(folder / path.name, path)
    except OSError as error:
        reason = error.strerror or next(iter(str(error).splitlines()), "no reason given")
        raise UserError(f"{path} cannot be written: {reason}. Expected a place that can.") from error
    finally:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        if is_new:
            with suppress(OSError):  # it holds the file
                path.parent.rmdir()


def size_on_disk(path: Path) -> int:
    """Return the bytes of a file, or of all files in a directory.

    Args:
        path: of either.
    """
    return sum(each.stat().st_size for each in _files(path))


def _files(path: Path) -> list[Path]:
    return [each for each in path.rglob("*") if each.is_file()] if path.is_dir() else [path]


def _sync(path: Path) -> None:
    for each in _files(path):
        with each.open("rb") as file:
            os.fsync(file.fileno())
    if path.is_dir():
        for each in (path, *(each for each in path.rglob("*") if each.is_dir())):
            sync_folder(each)


def _exchange(temporary: Path, path: Path) -> None:
    """Give what was written its name. An old directory keeps its name until the new one can have it."""
    if not path.is_dir():
        os.replace(temporary, path)
    else:
        gone = path.with_name(f"{temporary.parent.name}.gone")
        os.replace(path, gone)
        try:
            os.replace(temporary, path)
        except BaseException:
            os.replace(gone, path)
            raise
        shutil.rmtree(gone)
    sync_folder(path.parent)
