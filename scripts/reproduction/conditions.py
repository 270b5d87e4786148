"""Under which conditions a run was made: day, commit, processor, and how busy the machine was with other work."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import date
from pathlib import Path
from typing import Any

from trainer.files import open_append, parse_json, read_text
from trainer.sweep.slots import usable_cores

FILE_NAME = "conditions.jsonl"
CODE = ("train.py", "trainer", "recipes", "hooks", "configs", "scripts", "requirements.lock")
"""What a run may depend on; results and data may lie beside it."""
ROOT = Path(__file__).resolve().parents[2]
SPARE = 1.0
"""How far the load may be above the number of cores before the times count as upper bounds: a run alone has some
threads more than cores."""


@dataclass(frozen=True)
class Conditions:
    """Hold the conditions of one process of a run.

    Attributes:
        run: name of its directory.
        day: on which it began, such as "2026-01-31".
        commit: of the project; None where it is no clone.
        clean: whether nothing was changed since the commit; None where nobody knows.
        cpu: name of the processor.
        cores: that the process could use.
        load: average number of processes that wanted a core, in the minute before its start and before its end.
        niced: whether it gave way to other processes.
    """

    run: str
    day: str
    commit: str | None
    clean: bool | None
    cpu: str
    cores: int
    load: tuple[float, float]
    niced: bool

    @property
    def under_load(self) -> bool:
        """Return whether its time is an upper bound only."""
        return self.niced or max(self.load) > self.cores + SPARE


@dataclass(frozen=True)
class _Begun:
    day: str
    load: float
    commit: str | None
    clean: bool | None


@dataclass
class Watch:
    """Note the conditions of processes from their start to their end."""

    _begun: dict[int, _Begun] = field(default_factory=dict)

    def begin(self, number: int) -> None:
        """Note the conditions at the start of a process.

        Args:
            number: of its job.
        """
        # A commit that is made meanwhile is none of the run's.
        self._begun[number] = _Begun(date.today().isoformat(), os.getloadavg()[0], *commit_of(ROOT))

    def end(self, number: int, run: str) -> Conditions:
        """Return the conditions of a process that has ended.

        Args:
            number: of its job.
            run: name of its directory.
        """
        begun = self._begun.pop(number)
        return Conditions(
            run=run,
            day=begun.day,
            commit=begun.commit,
            clean=begun.clean,
            cpu=cpu_name(),
            cores=usable_cores(),
            load=(round(begun.load, 2), round(os.getloadavg()[0], 2)),
            niced=os.nice(0) > 0,
        )


def append(directory: Path, conditions: Conditions) -> None:
    """Add a line to the record of a directory.

    Args:
        directory: of all runs.
        conditions: of a process that has ended.

    Raises:
        OSError: it cannot be written.
    """
    with open_append(directory / FILE_NAME) as file:
        file.write(f"{json.dumps(asdict(conditions))}\n".encode())


def read(directory: Path) -> dict[str, list[Conditions]]:
    """Return the conditions of each run's processes, by name; a line that was cut by a kill is left out.

    Args:
        directory: of all runs.
    """
    found: dict[str, list[Conditions]] = {}
    try:
        lines = read_text(directory / FILE_NAME).splitlines()
    except (OSError, ValueError):
        return found
    for line in lines:
        try:
            each = _from_json(parse_json(line))
        except (ValueError, TypeError, KeyError):
            continue
        found.setdefault(each.run, []).append(each)
    return found


def _from_json(content: Mapping[str, Any]) -> Conditions:
    values = {each.name: content[each.name] for each in fields(Conditions)}
    before, after = values["load"]
    return Conditions(**{**values, "load": (float(before), float(after))})


def cpu_name() -> str:
    """Return the name of the processor, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def commit_of(directory: Path) -> tuple[str | None, bool | None]:
    """Return the commit of a clone, and whether no code of it was changed; None and None where it is no clone.

    Args:
        directory: top of the clone.
    """
    commit, changed = _git(directory, "rev-parse", "HEAD"), _git(directory, "status", "--porcelain", "--", *CODE)
    if commit is None or changed is None:
        return None, None
    # What this command itself writes is no change to what was run.
    own = [line for line in changed.splitlines() if line[3:] not in ("recipes/results.json", "recipes/RESULTS.md")]
    return commit.strip(), not own


def _git(directory: Path, *arguments: str) -> str | None:
    command: Sequence[str] = ["git", "-C", str(directory), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return None
