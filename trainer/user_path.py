"""The path that a user means by a text."""

from __future__ import annotations

import os
from pathlib import Path

from trainer.errors import UserError


def user_path(text: str | Path, key: str) -> Path:
    """Return the path that a text names; "~" at its beginning is the home directory.

    The name of a user who does not exist stays as it is, so that whoever looks for the path says that it is not there.

    Args:
        text: as the user gave it.
        key: that it was given as, such as "data.path".

    Raises:
        UserError: the system refuses to look at it: a name is too long, or a directory on the way is closed.
    """
    path = Path(os.path.expanduser(text))
    try:
        path.exists()
    except OSError as error:
        raise UserError(
            f"{key} '{path}' cannot be looked at ({error.strerror}). Check its spelling, and who may enter its "
            "directories."
        ) from error
    return path
