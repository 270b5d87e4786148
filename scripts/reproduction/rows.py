"""A row of the table: what the runs and exports of a target reached, and under which conditions."""

from __future__ import annotations

import gzip
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

from hookline.deploy.inference.container import PACKED, SPARSE, read_container
from hookline.deploy.inference.sparse_file import NETWORK
from hookline.scripts.comparison.runs import StoredRun, nested, number, read_run
from hookline.scripts.reproduction.targets import Export, Measure, Target, commands_of
from hookline.scripts.sweep.record import usable_cores
from hookline.trainer.errors import UserError
from hookline.trainer.files import open_append, parse_json, read_json, read_text
from hookline.trainer.run.directory import cpu_name

ROOT = Path(__file__).resolve().parents[2]
FILE_NAME = "conditions.jsonl"
CODE = ("train.py", "trainer", "deploy", "recipes", "hooks", "configs", "scripts", "requirements.lock")
"""What a run may depend on; results and data may lie beside it."""
OWN = ("recipes/results.json", "recipes/RESULTS.md")
"""What this command itself writes."""
Row = dict[str, Any]
Conditions = dict[str, Any]
"""Of one process of a run, as conditions.jsonl holds them."""


def make_export(run: Path, export: Export) -> None:
    """Write and evaluate the export of a run, if it does not exist."""
    path, evaluation = _export_paths(run, export)
    if not path.exists():
        _call("export.py", f"run={run}", *export.options, f"output={path}", "overwrite=true")
    if not evaluation.exists():
        _call("evaluate.py", f"model={path}", f"name={export.name}")


def _export_paths(run: Path, export: Export) -> tuple[Path, Path]:
    """Return where the export of a run lies, and its evaluation."""
    return run / "export" / f"{export.name}{export.ending}", run / "evaluation" / export.name / "evaluation.json"


def _call(script: str, *arguments: str) -> None:
    command = [sys.executable, str(ROOT / "scripts" / script), *arguments]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        last = found.stderr.strip().rpartition("\n")[2]
        raise UserError(f"{script} ended with exit code {found.returncode}: {last.removeprefix('Error: ')}")


def _read_export(run: Path, export: Export, value: str) -> float | None:
    """Return a measure of an export."""
    path, evaluation = _export_paths(run, export)
    if value == "accuracy":
        return number(nested(read_json(evaluation), ("overall", "accuracy")))
    if value != "bytes":
        content = path.read_bytes()
        return len(gzip.compress(content, mtime=0) if value == "gzip" else content)
    _, arrays = read_container(path, SPARSE if ".sparse." in path.name else PACKED)
    return sum(array.nbytes for name, array in arrays.items() if name != NETWORK)  # without the network's description


def conditions_now() -> Conditions:
    """Return the conditions at the start of a process."""
    return {
        "day": date.today().isoformat(),
        "clean": _is_clean(),
        "cpu": cpu_name(),
        "cores": usable_cores(),
        "load": [round(os.getloadavg()[0], 2)],
        "niced": os.nice(0) > 0,
    }


def append_conditions(directory: Path, run: str, begun: Conditions) -> None:
    """Add those of a process that has ended to the record of a directory."""
    ended = {"run": run, **begun, "load": [*begun["load"], round(os.getloadavg()[0], 2)]}
    with open_append(directory / FILE_NAME) as file:
        file.write(f"{json.dumps(ended)}\n".encode())


def read_conditions(directory: Path) -> dict[str, list[Conditions]]:
    """Return the conditions of each run's processes, by name; a line that was cut by a kill is left out."""
    found: dict[str, list[Conditions]] = {}
    path = directory / FILE_NAME
    for line in read_text(path).splitlines() if path.exists() else ():
        with suppress(ValueError):
            each = parse_json(line)
            found.setdefault(each["run"], []).append(each)
    return found


def _is_clean() -> bool | None:
    """Return whether the code is as committed; None if this is not a clone."""
    command: Sequence[str] = ["git", "-C", str(ROOT), "status", "--porcelain", "--", *CODE]
    try:
        changed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    return all(line[3:] in OWN for line in changed.splitlines())


def make_row(
    target: Target,
    seeds: Sequence[int],
    directory: Callable[[str], Path],
    conditions: Mapping[str, Sequence[Conditions]],
) -> Row:
    """Return the row of a target whose runs are complete and whose exports are made; conditions by name of the run."""
    names = {(name, seed): variant.run(seed) for name, variant in target.runs.items() for seed in seeds}
    stored = {key: read_run(directory(name)) for key, name in names.items()}
    measures = [_measured(measure, target, seeds, stored) for measure in target.measures.values()]
    means = {each["name"]: each["mean"] for each in measures}
    noted = {key: conditions.get(name, ()) for key, name in names.items()}
    first = next(iter(target.runs))
    times = [each for (name, _), each in noted.items() if name == first]
    own = [run for (name, _), run in stored.items() if name == first]
    return {
        "name": target.name,
        "title": target.title,
        "recipe": target.recipe,
        "data": target.data,
        "seeds": list(seeds),
        "commands": commands_of(target, seeds),
        "measures": measures,
        "goals": [_judged(goal, means) for goal in target.goals],
        "bytes": round(_median(run.summary["bytes"]["deployed"] for run in own)) if target.size else None,
        "seconds": {
            variant: _median(run.summary["seconds"] for (name, _), run in stored.items() if name == variant)
            for variant in target.runs
        },
        "threads": max(
            int(run.config["trainer"].get("threads") or _stored_environment(run).get("cpu_count") or 0) for run in own
        ),
        # A time is an upper bound then; a run that a kill has cut out of the record may have had other work beside it.
        "under_load": not all(times)
        or any(one["niced"] or max(one["load"]) > one["cores"] + 1.0 for each in times for one in each),
        "environment": _environment(stored.values(), [one for each in noted.values() for one in each]),
    }


def _measured(
    measure: Measure, target: Target, seeds: Sequence[int], stored: Mapping[tuple[str, int], StoredRun]
) -> Row:
    values: dict[str, float] = {}
    export = target.exports.get(measure.export)
    for seed in seeds:
        run = stored[export.run if export else measure.run, seed]
        if export and run.directory:
            found = _read_export(run.directory, export, measure.value)
        elif measure.metric:
            found = run.value(measure.split, measure.metric)
        else:
            found = number(nested(run.summary, measure.summary.split(".")))
        if found is None:
            raise UserError(f"{target.name}: {run.name} has no {measure.metric or measure.summary or measure.value}.")
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


def _judged(goal: Mapping[str, Any], means: Mapping[str, float]) -> Row:
    """Return a goal with its figure, which may be another measure of ours, and whether it is reached."""
    relation = "at_least" if "at_least" in goal else "at_most"
    given, ours = goal[relation], means[goal["measure"]]
    named = isinstance(given, str)
    figure = means[given] if named else float(given)
    return {
        "measure": goal["measure"],
        "relation": relation.replace("_", " "),
        "figure": figure,
        "source": goal.get("source") or (f"our {given}" if named else ""),
        "reached": ours >= figure if relation == "at_least" else ours <= figure,
    }


def _median(values: Iterable[float]) -> float:
    return round(statistics.median(values), 1)


def _stored_environment(run: StoredRun) -> dict[str, Any]:
    """Return what the run was made with; nothing if it was removed."""
    path = (run.directory or Path()) / "environment.json"
    return dict(read_json(path)) if path.exists() else {}


def _environment(runs: Iterable[StoredRun], conditions: Sequence[Conditions]) -> Row:
    """Return all that the runs were made with: one value each, or several where they differ."""
    environments = [_stored_environment(run) for run in runs]
    packages = [each.get("packages", {}) for each in environments]
    return {
        "dates": sorted({each["day"] for each in conditions}),
        "commits": _all(each.get("git_commit") for each in environments),
        "clean": {each["clean"] for each in conditions} == {True},
        "python": _all(each.get("python") for each in environments),
        "tensorflow": _all(each.get("tensorflow") for each in packages),
        "keras": _all(each.get("keras") for each in packages),
        "cpus": _all(each["cpu"] for each in conditions),
        "cores": sorted({each["cores"] for each in conditions}),
        "gpus": max((len(each.get("gpus", ())) for each in environments), default=0),
    }


def _all(values: Iterable[str | None]) -> list[str]:
    return sorted({value for value in values if value})
