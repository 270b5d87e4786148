"""Read arrays from an npz file that a user names."""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from trainer.damaged_arrays import ARRAY_FAULTS
from trainer.errors import UserError
from trainer.user_path import user_path


def read_npz(path: str, keys: Sequence[str]) -> dict[str, np.ndarray]:
    """Return arrays of an npz file by key. Nothing in the file is ever executed: pickled objects are refused.

    Args:
        path: the file; "~" is the home directory, and a relative path starts at the working directory.
        keys: the arrays wanted.

    Raises:
        UserError: no such file, not a readable npz, or a key that it does not hold.
    """
    file = existing_npz(path)
    try:
        with np.load(file, allow_pickle=False) as archive:
            found = list(archive)
            arrays = {key: archive[key] for key in keys if key in found}
    except ARRAY_FAULTS as error:
        raise UserError(
            f"'{file}' is not a readable npz of plain arrays ({error}); expected what numpy.savez writes. Write or "
            "download it again."
        ) from error
    missing = [key for key in keys if key not in found]
    if missing:
        raise UserError(
            f"'{file}' holds {', '.join(found) or 'no array'}; expected {', '.join(keys)}. Add {', '.join(missing)}."
        )
    return arrays


def existing_npz(path: str) -> Path:
    """Return the npz file that a path names; nothing but its end is read.

    Args:
        path: as for `read_npz`.

    Raises:
        UserError: no such file, or one of another kind.
    """
    if not str(path).strip():
        raise UserError("data.path is empty; expected the path of an npz file. Give one, or null for none.")
    file = user_path(str(path), "data.path")
    if not file.is_file():
        state = "is a directory" if file.is_dir() else "does not exist"
        raise UserError(f"data.path '{file}' {state}; expected an npz file. Working directory: {Path.cwd()}.")
    if not zipfile.is_zipfile(file):
        raise UserError(f"'{file}' is not an npz file; expected what numpy.savez writes. Convert or download it again.")
    return file
