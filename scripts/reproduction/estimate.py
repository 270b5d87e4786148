"""How long the runs that are left will take, by those that were made."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from scripts.reproduction.plan import Job
from scripts.reproduction.rows import Row
from scripts.reproduction.runs import Runs
from scripts.reproduction.targets import Target
from trainer.comparison.stored_run import number
from trainer.run.results import format_seconds
from trainer.sweep.record import read_summary

START_SECONDS = 8.0
"""What a run takes besides its training."""
Seconds = dict[tuple[str, str], float]
"""Of training, by the target that owns a variant, and the variant."""


def estimate(jobs: Sequence[Job], known: Mapping[tuple[str, str], float]) -> str:
    """Return how long jobs will take one after the other, as text.

    Args:
        jobs: to be made.
        known: seconds by variant.
    """
    seconds = [known[job.variant] + START_SECONDS for job in jobs if job.variant in known]
    if not seconds:
        return "time unknown"
    unknown = len(jobs) - len(seconds)
    more = f", and {unknown} runs of unknown time" if unknown else ""
    return f"about {format_seconds(sum(seconds))}{more}"


def seconds_here(runs: Runs) -> Seconds:
    """Return the median seconds of the runs that are complete.

    Args:
        runs: of a directory.
    """
    found: dict[tuple[str, str], list[float]] = {}
    for job in runs.jobs():
        seconds = number(read_summary(runs.directory(job.name)).get("seconds"))
        if seconds is not None and runs.is_done(job.name):
            found.setdefault(job.variant, []).append(seconds)
    return {variant: statistics.median(values) for variant, values in found.items()}


def seconds_before(rows: Sequence[Row], targets: Mapping[str, Target]) -> Seconds:
    """Return the seconds that rows record.

    Args:
        rows: of results.json.
        targets: all.
    """
    found: Seconds = {}
    for row in rows:
        target = targets.get(row["name"])
        for name, seconds in row.get("seconds", {}).items():
            if target is not None and name in target.runs and number(seconds) is not None:
                found[target.runs[name].target, target.runs[name].name] = float(seconds)
    return found
