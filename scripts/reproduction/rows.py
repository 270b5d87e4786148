"""A row of the table, of the runs of a target."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.reproduction.conditions import Conditions
from scripts.reproduction.exports import read_export
from scripts.reproduction.plan import commands_of, job_name
from scripts.reproduction.targets import Goal, Measure, Target
from trainer.comparison.stored_run import StoredRun, number, read_run
from trainer.errors import UserError
from trainer.files import read_json

Row = dict[str, Any]
Directory = Callable[[str], Path]
"""Of a job, by its name."""


def make_row(
    target: Target,
    targets: Mapping[str, Target],
    seeds: Sequence[int],
    directory: Directory,
    conditions: Mapping[str, Sequence[Conditions]],
    name_of: Callable[[str], str],
) -> Row:
    """Return the row of a target whose runs are complete and whose exports are made.

    Args:
        target: of the row.
        targets: all.
        seeds: over which the mean is taken.
        directory: returns where a run lies.
        conditions: of each run's processes, by the name of its directory.
        name_of: returns the name of a job's directory.

    Raises:
        UserError: a run is damaged, or lacks what is measured.
    """
    stored = {
        (name, seed): read_run(directory(job_name(variant, seed)))
        for name, variant in target.runs.items()
        for seed in seeds
    }
    measures = [_measured(measure, target, seeds, stored, directory) for measure in target.measures.values()]
    means = {each["name"]: each["mean"] for each in measures}
    noted = {key: list(conditions.get(name_of(job_name(target.runs[key[0]], key[1])), ())) for key in stored}
    first = next(iter(target.runs))
    own = [run for (name, _), run in stored.items() if name == first]
    return {
        "name": target.name,
        "title": target.title,
        "recipe": target.recipe,
        "data": target.data,
        "seeds": list(seeds),
        "commands": commands_of(target, targets, seeds),
        "measures": measures,
        "goals": [_judged(goal, means) for goal in target.goals],
        "bytes": round(_median(run.summary["bytes"]["deployed"] for run in own)) if target.size else None,
        "seconds": {
            variant: _median(run.summary["seconds"] for (name, _), run in stored.items() if name == variant)
            for variant in target.runs
        },
        "threads": max(_threads(run) for run in own),
        "under_load": _under_load(noted, next(iter(target.runs))),
        "environment": _environment(stored.values(), [one for each in noted.values() for one in each]),
    }


def _under_load(noted: Mapping[tuple[str, int], Sequence[Conditions]], variant: str) -> bool:
    """Return whether a variant had other work beside it; one that a kill has cut out of the record may have had any."""
    own = [each for (name, _), each in noted.items() if name == variant]
    return any(not each or any(one.under_load for one in each) for each in own)


def _measured(
    measure: Measure,
    target: Target,
    seeds: Sequence[int],
    stored: Mapping[tuple[str, int], StoredRun],
    directory: Directory,
) -> Row:
    values: dict[str, float] = {}
    for seed in seeds:
        if measure.export:
            export = target.exports[measure.export]
            where = directory(job_name(target.runs[export.run], seed))
            found = read_export(where, export, measure.value)
        else:
            run = stored[measure.run, seed]
            where = run.directory or Path()
            found = run.value(measure.split, measure.metric) if measure.metric else _at(run.summary, measure.summary)
        if found is None:
            raise UserError(f"{target.name}: {where} has no {measure.metric or measure.summary or measure.value}.")
        values[str(seed)] = measure.unit.of(found)
    return {
        "name": measure.name,
        "unit": measure.unit.text,
        "decimals": measure.unit.decimals,
        "values": values,
        "mean": round(statistics.fmean(values.values()), 6),
        "low": min(values.values()),
        "high": max(values.values()),
    }


def _at(summary: Any, path: str) -> float | None:
    for name in path.split("."):
        summary = summary.get(name) if isinstance(summary, Mapping) else None
    return number(summary)


def _judged(goal: Goal, means: Mapping[str, float]) -> Row:
    figure = means[goal.figure] if isinstance(goal.figure, str) else float(goal.figure)
    ours = means[goal.measure]
    return {
        "measure": goal.measure,
        "relation": "at least" if goal.at_least else "at most",
        "figure": figure,
        "source": goal.source,
        "reached": ours >= figure if goal.at_least else ours <= figure,
    }


def _median(values: Iterable[float]) -> float:
    return round(statistics.median(values), 1)


def _threads(run: StoredRun) -> int:
    chosen = run.config["trainer"].get("threads")
    return int(chosen or _stored_environment(run).get("cpu_count") or 0)


def _stored_environment(run: StoredRun) -> dict[str, Any]:
    try:
        content = read_json((run.directory or Path()) / "environment.json")
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _environment(runs: Iterable[StoredRun], conditions: Sequence[Conditions]) -> Row:
    """Return all that the runs were made with: one value each, or several where they differ."""
    environments = [_stored_environment(run) for run in runs]
    packages = [each.get("packages", {}) for each in environments]
    clean = {each.clean for each in conditions}
    return {
        "dates": sorted({each.day for each in conditions}),
        "commits": _all([*(each.commit for each in conditions), *(each.get("git_commit") for each in environments)]),
        "clean": clean == {True},
        "python": _all(each.get("python") for each in environments),
        "tensorflow": _all(each.get("tensorflow") for each in packages),
        "keras": _all(each.get("keras") for each in packages),
        "cpus": _all(each.cpu for each in conditions),
        "cores": sorted({each.cores for each in conditions}),
        "gpus": max((len(each.get("gpus", ())) for each in environments), default=0),
    }


def _all(values: Iterable[str | None]) -> list[str]:
    return sorted({value for value in values if value})
