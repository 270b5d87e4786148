"""A run as it lies on disk, or as a sweep knows it: what it was asked to do, and how it ended."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.config.stored import FILE_NAME, OVERRIDES, read_overrides, read_stored, recipe_of
from trainer.errors import UserError
from trainer.files import read_json
from trainer.run.results import COMPLETE

SUMMARY = "summary.json"
UNFINISHED = "unfinished"
"""The status of a run without a summary: it goes on, or its process was killed."""
NUMBERS = (("seconds",), ("params", "total"), ("bytes", "deployed"))
TEXTS = (("status",),)
PARTS = (("best",), ("test",))
"""Of summary.json: what is compared, by the type of its values."""


@dataclass(frozen=True)
class StoredRun:
    """Hold what is known of a run.

    Attributes:
        name: how it is called: its directory, or the number of its job.
        recipe: the recipe's name.
        overrides: of its command line.
        config: resolved; empty where the run did not get so far as to have one.
        summary: what its summary.json holds; empty where it has none.
        status: as in summary.json or sweep.json; "unfinished" where neither tells.
        directory: where it lies; None where it has no place.
        written: when its summary was written, in seconds since the epoch.
    """

    name: str
    recipe: str
    overrides: tuple[str, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    summary: Mapping[str, Any] = field(default_factory=dict)
    status: str = UNFINISHED
    directory: Path | None = None
    written: float = 0.0

    @property
    def is_complete(self) -> bool:
        """Return whether the run made all its steps, or was ended for good by a hook."""
        return self.status in COMPLETE and bool(self.summary)

    @property
    def seed(self) -> int | None:
        """Return the seed; None where no config is known."""
        return self.config.get("seed")

    def value(self, split: str, name: str) -> float | None:
        """Return a metric of the summary; None where it was not measured, or is no finite number.

        Args:
            split: "train" (the last report), "validation" (the best evaluation) or "test".
            name: such as "metric/accuracy".
        """
        return number(self.values(split).get(name))

    def values(self, split: str) -> Mapping[str, Any]:
        """Return all that the summary says of a split, by name.

        Args:
            split: "train", "validation" or "test".
        """
        part = self.summary.get({"train": "final", "validation": "best"}.get(split, split))
        if split == "validation" and isinstance(part, Mapping):
            part = part.get("values")
        return part if isinstance(part, Mapping) else {}


def number(value: Any) -> float | None:
    """Return a value that a file holds as a finite number, or None.

    Args:
        value: what JSON knows.
    """
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


def is_run(directory: Path) -> bool:
    """Return whether a directory claims to be a run.

    Args:
        directory: exists.
    """
    return (directory / FILE_NAME).is_file() and (directory / OVERRIDES).is_file()


def read_run(directory: Path, name: str | None = None) -> StoredRun:
    """Return a run.

    Args:
        directory: of the run.
        name: how it is called; None for its directory.

    Raises:
        UserError: the directory is no run, or one of its files is damaged or of another format.
    """
    config, recipe = _read_config(directory)
    path = directory / SUMMARY
    summary = _read_summary(path) if path.exists() else {}
    return StoredRun(
        name=str(directory) if name is None else name,
        recipe=recipe,
        overrides=tuple(read_overrides(directory)),
        config=config,
        summary=summary,
        status=summary.get("status", UNFINISHED),
        directory=directory,
        written=path.stat().st_mtime if summary else 0.0,
    )


def _read_config(directory: Path) -> tuple[dict[str, Any], str]:
    """Return the config and the recipe's name."""
    try:
        config, recipe = read_stored(str(directory), "run"), recipe_of(str(directory), "run")
    except UserError as error:
        raise UserError(str(error).removeprefix("run=")) from error  # a path that the user gave by itself
    trainer, seed = config["trainer"], config.get("seed")
    if not isinstance(trainer, Mapping) or not isinstance(trainer.get("monitor"), str) or not isinstance(seed, int):
        raise UserError(f"{directory}/{FILE_NAME} is of another format: it lacks seed or trainer.monitor.")
    return config, recipe


def _read_summary(path: Path) -> dict[str, Any]:
    try:
        summary = read_json(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read: it is damaged. Expected what train.py writes.") from error
    lacking = [".".join(place) for place in NUMBERS if number(_at(summary, place)) is None]
    lacking += [".".join(place) for place in TEXTS if not isinstance(_at(summary, place), str)]
    lacking += [".".join(place) for place in PARTS if not isinstance(_at(summary, place), Mapping)]
    if lacking:
        raise UserError(f"{path} is of another format: it lacks {', '.join(lacking)}. Expected what train.py writes.")
    return dict(summary)


def _at(summary: Any, place: Sequence[str]) -> Any:
    for name in place:
        summary = summary.get(name) if isinstance(summary, Mapping) else None
    return summary
