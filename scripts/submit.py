"""Submit the jobs of a sweep to SLURM.

python scripts/submit.py recipe=<first>,<second> seed=1,2,3 [--sweep <directory>] [--resources <file>]

Takes the command line of `python train.py -m`. Each job is a task of one job array (submitit), in a directory that
every node can access; with --trials, each task runs one trial after another until none is left. A job with
trainer.strategy=multi_worker has one task per worker: `nodes` and `tasks_per_node` of the resources. When its time is
up, or when it is preempted, a run saves, and its job is queued again to resume it. Repeat the command to submit what is
missing; `python train.py -m --sweep <directory>` runs it on this machine instead.

  --sweep <dir>        directory of the sweep, accessible from every node; default: runs/sweeps/<date_time>
  --resources <file>   YAML file with time, cores, memory and GPUs of each job; default: scripts/slurm.yaml
  --trials <number>    search with one study: as many tasks as slurm_array_parallelism, or --jobs <number>
  --storage <url>      as for python train.py; every node must reach the database
  --cluster <name>     slurm, or local: processes on this machine, all at once, to try it out
  --config-dir <dir>, --config-name <name>   as for python train.py
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, a script does not see its project

import hookline
from hookline.scripts.command import make_main
from hookline.scripts.sweep.command import SweepTask, missing_jobs
from hookline.scripts.sweep.open import OpenSweep, open_sweep
from hookline.scripts.sweep.record import RUNNING, WAITING, Slots
from hookline.trainer.config.command import Command, parse_command
from hookline.trainer.errors import UserError, as_typed, check_choice, check_integer, import_optional
from hookline.trainer.replicas.cluster import MULTI_WORKER, check_workers
from hookline.trainer.run.directory import locked

ROOT = Path(__file__).resolve().parents[1]
RESOURCES = ROOT / "scripts" / "slurm.yaml"
CLUSTERS = ("slurm", "local")
COUNTS = {"nodes", "tasks_per_node", "cpus_per_task", "timeout_min", "max_num_timeout", "slurm_array_parallelism"}
"""Resources that must be integers of at least 1."""


@dataclass
class Options:
    """The options of the command line."""

    command: Command  # the sweep
    resources: dict[str, Any]  # of each job, by submitit's names
    cluster: str  # one of `CLUSTERS`


def parse(arguments: Sequence[str]) -> Options:
    """Return the options of a command line."""
    rest, own = list(arguments), {"--resources": str(RESOURCES), "--cluster": CLUSTERS[0]}
    for flag in own:
        if flag in rest:
            place = rest.index(flag)
            if place + 1 == len(rest):
                raise UserError(f"{flag} has no value. Expected {flag} <value>; see --help.")
            own[flag] = rest[place + 1]
            del rest[place : place + 2]
    command = parse_command(["-m", *(each for each in rest if each not in ("-m", "--multirun"))])
    check_choice("cluster", own["--cluster"], CLUSTERS)
    import yaml

    path = Path(own["--resources"])
    try:
        resources = dict(yaml.safe_load(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, yaml.YAMLError) as error:
        raise UserError(f"--resources {path} cannot be read. Expected a YAML file such as {RESOURCES}.") from error
    for key in sorted(COUNTS & resources.keys()):
        check_integer(f"{key} in --resources", resources[key])
    return Options(command, resources, own["--cluster"])


def make_executor(options: Options, directory: Path) -> Any:
    """Return submitit's executor for the cluster."""
    submitit = import_optional("submitit", extra="slurm", needed_by="scripts/submit.py")
    resources = dict(options.resources)
    again = {f"{options.cluster}_max_num_timeout": resources.pop("max_num_timeout", 3)}
    try:
        executor = submitit.AutoExecutor(directory, cluster=options.cluster, **again)
        executor.update_parameters(**resources)
    except (RuntimeError, NameError, ValueError, TypeError, AssertionError) as error:
        why = str(error).partition("Valid parameters")[0]
        expected = "Expected a node of a SLURM cluster, or --cluster local, and --resources that it knows."
        raise UserError(f"{why} {expected}") from error
    return executor


def submit(options: Options) -> list[Any]:
    """Submit the missing jobs of a sweep; return submitit's jobs."""
    command = options.command
    opened = open_sweep(command)
    sweep = opened.sweep
    sweep.directory = sweep.directory.absolute()
    if command.jobs is not None and not opened.space:
        raise UserError(f"--jobs {command.jobs} received. Expected slurm_array_parallelism in --resources <file>.")
    with TemporaryDirectory() as nowhere:
        make_executor(options, Path(nowhere))  # reports errors before anything is written
    _check_tasks(options.resources, opened)
    sweep.directory.mkdir(parents=True, exist_ok=True)
    # The nodes import the module of a task to unpickle it, in any working directory.
    root = str(Path(hookline.__file__).absolute().parents[1])
    os.environ["PYTHONPATH"] = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), root])
    with nullcontext() if opened.space else locked(sweep.directory):
        numbers = _begin(options, opened)
        executor = make_executor(options, sweep.directory / "submitit")
        with executor.batch() if numbers else nullcontext():
            tasks = [SweepTask(sweep.directory, each, Path.cwd(), command.storage) for each in numbers]
            submitted = [executor.submit(task) for task in tasks]
    jobs = {job.number: job for job in sweep.jobs}
    for number, found in zip(numbers, submitted, strict=True):
        if number is None:
            print(f"Worker {found.job_id}")
        else:
            job = jobs[number]
            print(f"Job {number}: {found.job_id}, {' '.join(job.overrides)}. It prints to {sweep.log(job)}")
    print(f"{len(numbers)} {'workers' if opened.space else f'of {len(jobs)} jobs'} submitted")
    print(as_typed(f"Compare, at any time: python scripts/compare.py {sweep.directory}"))
    return submitted


def _check_tasks(resources: Mapping[str, Any], opened: OpenSweep) -> None:
    """Raise UserError for several tasks per single-process job, or for workers that cannot share a batch."""
    tasks = resources.get("nodes", 1) * resources.get("tasks_per_node", 1)
    for job in opened.checked.values():
        if job.config["trainer"]["strategy"] == MULTI_WORKER and not opened.space:
            check_workers(job.config["trainer"], tasks)
        elif tasks > 1:
            raise UserError(
                f"nodes and tasks_per_node in --resources make {tasks} tasks for a job of one process. Expected "
                "trainer.strategy=multi_worker, without --trials."
            )


def _begin(options: Options, opened: OpenSweep) -> list[int | None]:
    """Record a submitted sweep; return the numbers of its missing jobs, or None for each worker of a search."""
    cores, sweep = options.resources.get("cpus_per_task", 1), opened.sweep
    if opened.space:
        from hookline.scripts.sweep.search import begin_search  # Optuna: an extra

        most = options.command.jobs or options.resources.get("slurm_array_parallelism", 1)
        search = begin_search(options.command, opened, lambda missing: Slots(({},) * min(missing, most), cores))
        return [None] * len(search.slots)
    sweep.threads = sweep.threads or cores
    missing = missing_jobs(sweep)
    for job in missing:
        job.status = job.status if job.status == RUNNING else WAITING  # an earlier task may be running it
    sweep.write()
    return [job.number for job in missing]


def _command(options: Options) -> int:
    submitted = submit(options)
    return max(map(_exit_code, submitted), default=0) if options.cluster == "local" else 0


def _exit_code(job: Any) -> int:
    """Wait for a local job; return the highest exit code of its tasks, 1 for one that was killed."""
    from submitit.core.utils import UncompletedJobError

    try:
        code = max(job.results())
    except UncompletedJobError:
        code = 1
    if code:
        print(f"Job {job.job_id} ended with exit code {code}. It printed to {job.paths.stdout}")
    return int(code)


main = make_main(__doc__, parse, _command)


if __name__ == "__main__":
    sys.exit(main())
