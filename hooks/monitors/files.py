"""Files that are written whole or not at all, and names for them."""

from __future__ import annotations

import re
from pathlib import Path

from trainer.errors import WriteError
from trainer.files import make_folder, write_whole


def write_files(files: dict[str, bytes], folder: Path) -> None:
    """Write files, each whole or not at all.

    Args:
        files: content by name.
        folder: made when there is a file to write.

    Raises:
        WriteError: the folder cannot be written to.
    """
    for name, content in files.items():
        path = folder / name
        try:
            make_folder(folder)
            write_whole(path, content)
        except OSError as error:
            raise WriteError(
                f"Cannot write {path}: {error.strerror}. Expected a directory with room: set run_dir, or do without: "
                "hooks.pictures=null hooks.projector=null."
            ) from error


def file_name(name: str) -> str:
    """Return a picture's name as the name of a file, such as "mask_dense_kernel" for "mask/dense/kernel".

    Args:
        name: any text.
    """
    return re.sub(r"[^A-Za-z0-9.-]+", "_", name).strip("_") or "picture"
