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
from hookline.scripts.comparison.runs import StoredRun, number, read_run
from hookline.scripts.reproduction.targets import Export, Measure, Target, commands_of
from hookline.trainer.config.schema import lookup
from hookline.trainer.errors import UserError
from hookline.trainer.files import open_append, parse_json, read_json, read_text
from hookline.trainer.run.directory import cpu_name, usable_cores

ROOT = Path(__file__).resolve().parents[2]
CONDITIONS = "conditions.jsonl"
CODE = ("train.py", "trainer", "deploy", "recipes", "hooks", "configs", "scripts", "requirements.lock")
"""Paths that a run may depend on; there may be results and data next to them."""
OWN = ("recipes/results.json", "recipes/RESULTS.md")
"""Files that this command itself writes."""
Row = dict[str, Any]


def conditions_now() -> dict[str, Any]:
    """Return the conditions at the start of a process; "clean": whether the code is as committed, None if unknown."""
    command: Sequence[str] = ["git", "-C", str(ROOT), "status", "--porcelain", "--", *CODE]
    try:
        changed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout
        clean = all(line[3:] in OWN for line in changed.splitlines())
    except (OSError, subprocess.SubprocessError):
        clean = None
    conditions = {"day": date.today().isoformat(), "clean": clean, "cpu": cpu_name(), "cores": usable_cores()}
    return {**conditions, "load": [round(os.getloadavg()[0], 2)], "niced": os.nice(0) > 0}


def append_conditions(out: Path, run: str, begun: Mapping[str, Any]) -> None:
    """Append the conditions of a process that has ended to the record of a directory."""
    ended = {"run": run, **begun, "load": [*begun["load"], round(os.getloadavg()[0], 2)]}
    with open_append(out / CONDITIONS) as file:
        file.write(f"{json.dumps(ended)}\n".encode())


def read_conditions(out: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the conditions of each run's processes, by name, without lines that were truncated by a kill."""
    found: dict[str, list[dict[str, Any]]] = {}
    path = out / CONDITIONS
    for line in read_text(path).splitlines() if path.exists() else ():
        with suppress(ValueError):
            each = parse_json(line)
            found.setdefault(each["run"], []).append(each)
    return found


def make_row(target: Target, seeds: Sequence[int], out: Path, place_of: Callable[[str], str]) -> Row:
    """Return the row of a target with complete runs, each at its place in `out`, and make missing exports."""
    places = {(name, seed): place_of(each.run(seed)) for name, each in target.runs.items() for seed in seeds}
    stored = {key: read_run(out / place) for key, place in places.items()}
    records = read_conditions(out)
    noted = {key: records.get(place, []) for key, place in places.items()}
    measures = [_measured(measure, target, seeds, stored) for measure in target.measures.values()]
    means = {each["name"]: each["mean"] for each in measures}
    first = next(iter(target.runs))
    own = [run for (name, _), run in stored.items() if name == first]
    times = [each for (name, _), each in noted.items() if name == first]
    cores = [run.config["trainer"].get("threads") or _environment(run).get("cpu_count") or 0 for run in own]
    return {
        **{key: getattr(target, key) for key in ("name", "title", "recipe", "data")},
        "seeds": list(seeds),
        "commands": commands_of(target, seeds),
        "measures": measures,
        "goals": [_judged(goal, means) for goal in target.goals],
        "bytes": round(statistics.median(run.summary["bytes"]["deployed"] for run in own)) if target.size else None,
        "seconds": {
            variant: round(statistics.median(stored[variant, seed].summary["seconds"] for seed in seeds), 1)
            for variant in target.runs
        },
        "threads": max(map(int, cores)),
        # Times are then upper bounds; a run missing from the record, because of a kill, may have shared the machine.
        "under_load": not all(times)
        or any(one["niced"] or max(one["load"]) > one["cores"] + 1.0 for each in times for one in each),
        "environment": _environments(stored.values(), [one for each in noted.values() for one in each]),
    }


def _measured(
    measure: Measure, target: Target, seeds: Sequence[int], stored: Mapping[tuple[str, int], StoredRun]
) -> Row:
    values: dict[str, float] = {}
    for seed in seeds:
        if export := target.exports.get(measure.export):
            run = stored[export.run, seed]
            found = _of_export(run.directory or Path(), export, measure.value)
        else:
            run = stored[measure.run, seed]
            of_summary = number(lookup(run.summary, measure.summary))
            found = run.value(measure.split, measure.metric) if measure.metric else of_summary
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


def _of_export(run: Path, export: Export, value: str) -> float | None:
    """Return a measure of the export of a run, after writing and evaluating it if that was not done yet."""
    path = run / "export" / f"{export.name}{export.ending}"
    evaluation = run / "evaluation" / export.name / "evaluation.json"
    if not path.exists():
        _call("export.py", f"run={run}", *export.options, f"output={path}", "overwrite=true")
    if not evaluation.exists():
        _call("evaluate.py", f"model={path}", f"name={export.name}")
    if value == "accuracy":
        return number(lookup(read_json(evaluation), "overall.accuracy"))
    if value != "bytes":
        content = path.read_bytes()
        return len(gzip.compress(content, mtime=0) if value == "gzip" else content)
    _, arrays = read_container(path, SPARSE if ".sparse." in path.name else PACKED)
    return sum(array.nbytes for name, array in arrays.items() if name != NETWORK)  # without the network's description


def _call(script: str, *arguments: str) -> None:
    command = [sys.executable, str(ROOT / "scripts" / script), *arguments]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        last = found.stderr.strip().rpartition("\n")[2]
        raise UserError(f"{script} ended with exit code {found.returncode}: {last.removeprefix('Error: ')}")


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
        "source": goal.get("source") or (f"ours, {given}" if named else ""),
        "reached": ours >= figure if relation == "at_least" else ours <= figure,
    }


def _environment(run: StoredRun) -> dict[str, Any]:
    """Return the environment of a run; empty if its file was removed."""
    path = (run.directory or Path()) / "environment.json"
    return dict(read_json(path)) if path.exists() else {}


def _environments(runs: Iterable[StoredRun], conditions: Sequence[Mapping[str, Any]]) -> Row:
    """Return the environments of runs: one value per entry, or several where they differ."""
    environments = [_environment(run) for run in runs]
    packages = [each.get("packages", {}) for each in environments]

    def distinct(key: str, parts: Sequence[Mapping[str, Any]]) -> list[Any]:
        return sorted({part[key] for part in parts if part.get(key)})

    return {
        "dates": distinct("day", conditions),
        "commits": distinct("git_commit", environments),
        "clean": {each["clean"] for each in conditions} == {True},
        "python": distinct("python", environments),
        "tensorflow": distinct("tensorflow", packages),
        "keras": distinct("keras", packages),
        "cpus": distinct("cpu", conditions),
        "cores": distinct("cores", conditions),
        "gpus": max((len(each.get("gpus", ())) for each in environments), default=0),
    }
