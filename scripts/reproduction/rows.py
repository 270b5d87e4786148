"""A row of the table."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import date
from pathlib import Path
from typing import Any

from hookline.deploy.inference.container import PACKED, SPARSE, read_container
from hookline.deploy.inference.sparse_file import NETWORK
from hookline.scripts.comparison.runs import StoredRun, number, read_run
from hookline.scripts.reproduction.targets import DATA, PLACEHOLDER, Export, Goal, Measure, Target, Variant
from hookline.scripts.sweep.record import usable_cores
from hookline.trainer.errors import UserError
from hookline.trainer.files import open_append, parse_json, read_json, read_text

SCRIPTS = Path(__file__).resolve().parents[1]


def export_path(run: Path, export: Export) -> Path:
    """Return where the export of a run lies."""
    return run / "export" / f"{export.name}{export.ending}"


def evaluation_path(run: Path, export: Export) -> Path:
    """Return where the evaluation of an export lies."""
    return run / "evaluation" / export.name / "evaluation.json"


def make_export(run: Path, export: Export, scripts: Path = SCRIPTS) -> None:
    """Write and evaluate the export of a run, if it does not exist."""
    path = export_path(run, export)
    if not path.exists():
        _call(scripts / "export.py", f"run={run}", *export.options, f"output={path}", "overwrite=true")
    if not evaluation_path(run, export).exists():
        _call(scripts / "evaluate.py", f"model={path}", f"name={export.name}")


def _call(script: Path, *arguments: str) -> None:
    # In a session of its own: Ctrl-C on the terminal reaches the caller alone, which ends after this.
    command: Sequence[str] = [sys.executable, str(script), *arguments]
    found = subprocess.run(command, capture_output=True, text=True, check=False, start_new_session=True)
    if found.returncode:
        lines = [line for line in found.stderr.splitlines() if line.strip()] or ["it said nothing"]
        raise UserError(f"{script.name} ended with exit code {found.returncode}: {lines[-1].removeprefix('Error: ')}")


def read_export(run: Path, export: Export, value: str) -> float | None:
    """Return a measure of an export; None if there is none that can be read."""
    try:
        if value == "bytes":
            return data_bytes(export_path(run, export))
        content = read_json(evaluation_path(run, export))
        return number(content["overall"]["accuracy"])
    except (OSError, UserError, ValueError, KeyError, TypeError):
        return None


def data_bytes(path: Path) -> int:
    """Return the bytes of the weights in a packed or sparse file, without its description of the network."""
    _, arrays = read_container(path, SPARSE if ".sparse." in path.name else PACKED)
    return sum(array.nbytes for name, array in arrays.items() if name != NETWORK)


FILE_NAME = "conditions.jsonl"
CODE = ("train.py", "trainer", "deploy", "recipes", "hooks", "configs", "scripts", "requirements.lock")
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
        commit: of the project; None if it is no clone.
        clean: whether nothing was changed since the commit; None if nobody knows.
        cpu: name of the processor.
        cores: that the process could use.
        load: average number of processes that wanted a core, in the minute before its start and before its end.
        niced: whether it ran at lower priority.
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
        """Note the conditions at the start of a process."""
        # A commit made meanwhile is not the run's.
        self._begun[number] = _Begun(date.today().isoformat(), os.getloadavg()[0], *commit_of(ROOT))

    def end(self, number: int, run: str) -> Conditions:
        """Return the conditions of a process that has ended."""
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
    """Add a line to the record of a directory."""
    with open_append(directory / FILE_NAME) as file:
        file.write(f"{json.dumps(asdict(conditions))}\n".encode())


def read(directory: Path) -> dict[str, list[Conditions]]:
    """Return the conditions of each run's processes, by name; a line that was cut by a kill is left out."""
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
    """Return the name of the processor, if the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def commit_of(directory: Path) -> tuple[str | None, bool | None]:
    """Return the commit of a clone, and whether no code of it was changed; None and None if it is no clone."""
    commit, changed = _git(directory, "rev-parse", "HEAD"), _git(directory, "status", "--porcelain", "--", *CODE)
    if commit is None or changed is None:
        return None, None
    # Files that this command itself writes do not count as changes.
    own = [line for line in changed.splitlines() if line[3:] not in ("recipes/results.json", "recipes/RESULTS.md")]
    return commit.strip(), not own


def _git(directory: Path, *arguments: str) -> str | None:
    command: Sequence[str] = ["git", "-C", str(directory), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout
    except (OSError, subprocess.SubprocessError):
        return None


@dataclass(frozen=True)
class Job:
    """Hold one run to make.

    Attributes:
        name: of its run directory, such as "bnn/bnn_0".
        overrides: of train.py, with placeholders, and the seed.
        variant: key in results.json of what it repeats with another seed.
        needs: names of jobs that have to be complete before, by placeholder.
        data: data whose place it takes.
    """

    name: str
    overrides: tuple[str, ...]
    variant: tuple[str, str]
    needs: Mapping[str, str]
    data: tuple[str, ...]

    def filled(self, places: Mapping[str, str]) -> list[str]:
        """Return the overrides with the names in braces replaced by places."""
        return [PLACEHOLDER.sub(lambda found: places[found[1]], text) for text in self.overrides]


def job_name(variant: Variant, seed: int) -> str:
    """Return the name of a run."""
    return f"{variant.target}/{variant.name}_{seed}"


def jobs_of(target: Target, targets: Mapping[str, Target], seeds: Sequence[int]) -> dict[str, Job]:
    """Return the runs that a target needs, by name: all variants of a seed, then those of the next."""
    jobs: dict[str, Job] = {}
    for seed in seeds:
        for variant in target.runs.values():
            for job in _with_needs(variant, targets, seed):
                jobs.setdefault(job.name, job)
    return jobs


def _with_needs(variant: Variant, targets: Mapping[str, Target], seed: int) -> Iterator[Job]:
    """Yield the run of a variant after those that it begins from."""
    owner = targets[variant.target]
    whole = owner.runs[variant.name]
    first = {name: owner.runs[name] for name in whole.placeholders if name not in DATA}
    for each in first.values():
        yield from _with_needs(each, targets, seed)
    yield Job(
        job_name(whole, seed),
        (*whole.overrides, f"seed={seed}"),
        (whole.target, whole.name),
        {name: job_name(each, seed) for name, each in first.items()},
        tuple(name for name in whole.placeholders if name in DATA),
    )


def commands_of(target: Target, targets: Mapping[str, Target], seeds: Sequence[int]) -> list[str]:
    """Return the command lines that make the runs and exports of a target, as a user types them."""
    shown = {**jobs_of(target, targets, seeds[:1])}
    named = {name for job in shown.values() for name in job.needs.values()}
    exported: dict[str, list[Export]] = {}
    for export in target.exports.values():
        exported.setdefault(job_name(target.runs[export.run], seeds[0]), []).append(export)
    if not named and not exported and len(seeds) > 1:
        several = ",".join(map(str, seeds))
        return [_line(job, "-m --jobs 1 ", several, ()) for job in shown.values()]
    seed = str(seeds[0]) if len(seeds) == 1 else "$seed"
    lines = []
    for job in shown.values():
        lines.append(_line(job, "", seed, (*named, *exported)))
        for export in exported.get(job.name, ()):
            lines += _export_lines(export, _run(job.name, seed), alone=len(exported[job.name]) == 1)
    if len(seeds) == 1:
        return lines
    return [f"for seed in {' '.join(map(str, seeds))}; do", *(f"    {line}" for line in lines), "done"]


def _line(job: Job, flags: str, seed: str, named: Collection[str]) -> str:
    """Return the command of a run; it has a run_dir= where others name it."""
    places = {name: _shown(name) for name in job.data}
    places |= {key: _run(name, seed) for key, name in job.needs.items()}
    words = [*map(_quoted, job.filled(places)[:-1]), f"seed={seed}"]
    own = [f"run_dir={_run(job.name, seed)}"] if job.name in named else []
    return f"python train.py {flags}{' '.join([*words, *own])}"


def _export_lines(export: Export, run: str, *, alone: bool) -> list[str]:
    """Return the commands that write and judge an export; one of several needs a path of its own."""
    path = f"{run}/export/{'model' if alone else export.name}{export.ending}"
    output = [] if alone else [f"output={path}"]
    return [
        " ".join([f"python scripts/export.py run={run}", *export.options, *output]),
        f"python scripts/evaluate.py model={path}",
    ]


def _run(name: str, seed: str) -> str:
    return f"runs/{name.rpartition('_')[0]}_{seed}"


def _shown(data: str) -> str:
    return {"mnist": "mnist.npz"}.get(data, data)


def _quoted(text: str) -> str:
    return f'"{text}"' if any(character in text for character in "{}[]*' ") else text


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
    """Return the row of a target whose runs are complete and whose exports are made."""
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
