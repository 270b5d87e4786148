"""What lies in a directory of checkpoints, by name: checkpoints, those set aside, what killed writers left."""

from __future__ import annotations

import os
import re
from pathlib import Path

from trainer.files import is_own_folder, remove

NAME = re.compile(r"step_(\d{8,})(_\d+)?")
LEFTOVER = re.compile(r"\.(step_\d{8,}(_\d+)?\.(tmp|gone)|index\.json\.tmp)")
DAMAGED = "damaged_"
LAST = "last"
"""The tag of the checkpoint to go on from."""


def step_of(name: str) -> int:
    """Return the step in the name of a checkpoint; -1 where the text is no such name.

    Args:
        name: such as "step_00000100".
    """
    match = NAME.fullmatch(name)
    return int(match.group(1)) if match else -1


def checkpoint_names(directory: Path) -> set[str]:
    """Return the names of the checkpoints, sound or not.

    Args:
        directory: of the checkpoints; may be missing.
    """
    return {path.name for path in _paths(directory) if step_of(path.name) >= 0 and is_own_folder(path)}


def set_aside(directory: Path) -> list[Path]:
    """Return what was set aside because it is damaged.

    Args:
        directory: of the checkpoints; may be missing.
    """
    return sorted(path for path in _paths(directory) if path.name.startswith(DAMAGED))


def leftovers(directory: Path) -> list[Path]:
    """Return what writers that were killed have left.

    Args:
        directory: of the checkpoints; may be missing.
    """
    return sorted(path for path in _paths(directory) if LEFTOVER.fullmatch(path.name))


def remove_leftovers(directory: Path) -> None:
    """Remove what writers have left, of a directory in which nobody writes.

    Args:
        directory: of the checkpoints; may be missing.
    """
    for path in leftovers(directory):
        remove(path)


def unused(directory: Path, name: str) -> Path:
    """Return a path that is not taken: the name, or the name with a number.

    Args:
        directory: of the checkpoints.
        name: that is wanted.
    """
    path, count = directory / name, 1
    while os.path.lexists(path):
        count += 1
        path = directory / f"{name}_{count}"
    return path


def _paths(directory: Path) -> list[Path]:
    return list(directory.iterdir()) if is_own_folder(directory) else []
