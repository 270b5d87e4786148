"""Measure the results of the recipes and compare them with those of the papers.

python scripts/reproduce.py [key=value ...]

The runs of each target are written to out/<target>/<variant>_<seed>. The command can be killed and repeated at any
time: finished runs stay, interrupted ones resume, failed ones start over. Rows with complete runs are written to
recipes/results.json and to the table recipes/RESULTS.md.

  out        directory for the runs (reproduction); if the command is repeated, only missing runs are started
  mnist      the file mnist.npz; without it, targets on MNIST are not run
  cifar10    a folder with train/<class>/<image> and test/<class>/<image>; without it, its targets are not run
  clothing   a folder with a folder of photographs for each class; without it, its targets are not run
  only       names of targets, such as only=bnn,lenet*; default: all, cheap ones first
  seeds      seeds instead of the targets' own, such as seeds=0; rows that lack one of those are shown, not stored
  jobs       runs at a time (1, so that measured times are not distorted)
  results    file to store the rows in (recipes/results.json); the table RESULTS.md is written beside it
  targets    file that defines the targets (scripts/reproduction/targets.yaml)
  list       true, or --list: show the targets, their commands and their status; nothing is run
  render     true, or --render: write RESULTS.md and the chart of accuracy and bytes again; nothing is run

Exit code: 0 done, 1 a run failed, 2 user error, 130 or 143 interrupted.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, a script does not see its project

from hookline.scripts.command import make_main, matching, parse_options, parse_seeds
from hookline.scripts.reproduction import table
from hookline.scripts.reproduction.rows import append_conditions, conditions_now, make_row
from hookline.scripts.reproduction.targets import DATA, Target, commands_of, read_targets, runs_of
from hookline.scripts.reproduction.targets import FILE as TARGETS
from hookline.scripts.sweep.open import job_arguments
from hookline.scripts.sweep.record import Sweep, SweepJob, divide
from hookline.scripts.sweep.run import ENDED, SweepRun
from hookline.train import say
from hookline.trainer.config.overrides import quoted
from hookline.trainer.config.stored import read_overrides
from hookline.trainer.errors import UserError, user_path
from hookline.trainer.run.directory import locked
from hookline.trainer.run.results import is_complete, read_summary

FLAGS = {"--list": "list=true", "--render": "render=true"}
ANY = "\0"
"""Wildcard for any text in an override."""
OURS = ("run_dir=", "trainer.threads=")
"""Overrides that this command adds."""


@dataclass
class Options:
    """The options of the command line."""

    out: str = "reproduction"
    mnist: str = ""
    cifar10: str = ""
    clothing: str = ""
    only: str = "*"
    seeds: str | None = None
    jobs: int = 1
    results: str = str(table.FILE)
    targets: str = str(TARGETS)
    list: bool = False
    render: bool = False


def parse(arguments: Sequence[str]) -> Options:
    """Return the options of a command line."""
    return parse_options([FLAGS.get(each, each) for each in arguments], Options)


class Runs(Sweep):
    """Runs that are not recorded as a sweep; each has its log beside its directory."""

    def log(self, job: SweepJob, worker: int = 0) -> Path:
        """Return the file with the output of a job's processes."""
        return self.directory / f"{job.run}.log"


class Session(SweepRun):
    """One invocation of the command; a run starts as soon as the runs that it depends on are complete.

    The runs are its only record: a run is matched to a variant by its name and command line.
    """

    def __init__(self, options: Options) -> None:
        """Choose the targets and find their data."""
        self.out, self.results = user_path(options.out, "out"), user_path(options.results, "results")
        super().__init__(Runs(self.out), divide(options.jobs, options.jobs))
        self.targets = read_targets(user_path(options.targets, "targets"))
        self.chosen = [self.targets[name] for name in matching("target", options.only, self.targets)]
        self.seeds = parse_seeds(options.seeds) if options.seeds is not None else None
        self.data = {name: user_path(text, name).absolute() for name in DATA if (text := getattr(options, name))}
        for name, path in self.data.items():
            if not path.exists():
                raise UserError(f"{name}={path} does not exist. Expected the path of the data, or none.")
        self.has_failed, self._at_once = False, options.jobs
        self.waiting: dict[str, SweepJob] = {}  # by name
        self._begun: dict[int, dict[str, Any]] = {}  # conditions, by job number
        self._runs = {each.name: runs_of(each, self.seeds or each.seeds) for each in self.chosen}
        self._all = {name: run for runs in self._runs.values() for name, run in runs.items()}
        self._open = [each for each in self.chosen if not self.lacks(each)]  # targets without a row so far

    def lacks(self, target: Target) -> str:
        """Return why a target cannot be run; an empty string if it can."""
        missing = [f"{name}=<path>" for name in target.needs if name not in self.data]
        return f"needs {' and '.join(missing)}, which was not given" if missing else ""

    def make(self) -> int:
        """Start the missing runs, store the rows with complete runs, and return the exit code."""
        for folder in (self.out, self.results.parent):
            folder.mkdir(parents=True, exist_ok=True)
        with locked(self.out):
            able = list(dict.fromkeys(name for target in self._open for name in self._runs[target.name]))
            for target in self.chosen:
                if reason := self.lacks(target):
                    say(f"{target.name}: not run: {reason}")
                    facts = {key: getattr(target, key) for key in ("name", "title", "recipe", "data")}
                    table.keep(self.results, {**facts, "not_run": reason}, [*self.targets])
            self.make_rows()
            missing = [name for name in able if not self.is_done(name)]
            say(f"{len(able) - len(missing)} of {len(able)} runs are done.")
            self.waiting = {name: SweepJob(number, [], name) for number, name in enumerate(missing, start=1)}
            self.sweep.jobs, self.slots = list(self.waiting.values()), divide(len(missing), self._at_once)
            code = self.run() if missing else 0
            for name in self.waiting:
                if needed := self.unmade(name):
                    say(f"left out: {name}, which begins from {needed[0]}")
        for target in self.chosen:
            say(f"{target.name}: {self.standing(target)}")
        say(f"runs: {self.out}; rows: {self.results}; table: {self.results.with_name(table.TABLE)}")
        return code if code in ENDED else int(self.has_failed)

    def place(self, name: str) -> str:
        """Return the folder in `out` of the latest run with the command line of a variant, or a new one for it."""
        variant, seed = self._all[name]
        data = dict.fromkeys(DATA, ANY)  # data, like the other runs, may have moved since
        filled = [*variant.filled(data, lambda other: f"{ANY}{self.place(other.run(seed))}"), f"seed={seed}"]
        expected = [re.escape(text.rstrip("'")).replace(ANY, ".*") for text in filled]
        found, place, number_of_try = "", name, 1
        while (self.out / place).exists():
            given = [text.rstrip("'") for text in read_overrides(self.out / place) if not text.startswith(OURS)]
            if len(given) == len(expected) and all(map(re.fullmatch, expected, given)):
                found = place
            number_of_try += 1
            place = f"{name}_try{number_of_try}"
        return found or place

    def is_done(self, name: str) -> bool:
        """Return whether a run is complete."""
        return is_complete(read_summary(self.out / self.place(name)))

    def unmade(self, name: str) -> list[str]:
        """Return the incomplete runs that a run starts from."""
        variant, seed = self._all[name]
        return [run for each in variant.needs.values() if not self.is_done(run := each.run(seed))]

    def overrides(self, name: str) -> list[str]:
        """Return the overrides of a run, with the paths of its data and of the runs that it starts from."""
        variant, seed = self._all[name]
        data = {name: quoted(path) for name, path in self.data.items()}
        return [*variant.filled(data, lambda other: quoted(self.out / self.place(other.run(seed)))), f"seed={seed}"]

    def next_job(self) -> SweepJob | None:
        name = next((each for each in self.waiting if not self.unmade(each)), None)
        if name is None:
            return None
        job = self.waiting.pop(name)
        job.run, job.overrides = self.place(name), self.overrides(name)
        (self.out / job.run).parent.mkdir(parents=True, exist_ok=True)
        return job

    def arguments(self, job: SweepJob) -> list[str]:
        self._begun[job.number] = conditions_now()
        has_threads = any(text.startswith("trainer.threads=") for text in job.overrides)
        given = job_arguments(self.sweep, job, None if self._at_once == 1 or has_threads else self.slots.threads)
        is_resumed = given[0].startswith("resume=")  # the data may have moved
        return [*given, *(text for text in job.overrides if is_resumed and text.startswith("data.path="))]

    def label(self, job: SweepJob) -> str:
        return job.run

    def record(self, job: SweepJob) -> None:
        """Record nothing: the runs themselves are the record."""

    def ended(self, job: SweepJob) -> None:
        append_conditions(self.out, job.run, self._begun[job.number])
        self.has_failed |= not is_complete(self.sweep.summary(job)) or bool(job.exit_code)
        self.make_rows()

    def standing(self, target: Target) -> str:
        """Return the status of a target in one line."""
        if reason := self.lacks(target):
            return f"not run: {reason}"
        runs = self._runs[target.name]
        return f"{sum(map(self.is_done, runs))} of {len(runs)} runs done"

    def make_rows(self) -> None:
        """Store the rows that have become complete."""
        for target in [each for each in self._open if all(map(self.is_done, self._runs[each.name]))]:
            self._open.remove(target)
            seeds = self.seeds or target.seeds
            try:
                row = make_row(target, seeds, self.out, self.place)
                say(table.render_short(row))
                if absent := ", ".join(str(seed) for seed in target.seeds if seed not in seeds):
                    say(f"{target.name}: not kept in {self.results.name}: seed {absent} is not among the runs")
                else:
                    table.keep(self.results, row, [*self.targets])
            except UserError as error:
                self.has_failed = True
                say(f"{target.name}: no row. {error}")


def _render(options: Options) -> None:
    """Write the table and the chart again."""
    results = user_path(options.results, "results")
    rows = table.read_results(results)
    if not rows:
        raise UserError(f"{results} holds no rows. Expected rows of runs; make some without render=true.")
    table.write_results(results, rows)
    print(f"table: {results.with_name(table.TABLE)}")
    if points := list(table.points_of(rows, read_targets(user_path(options.targets, "targets")))):
        chart = table.CHART if results == table.FILE else results.with_suffix(".png")
        table.write_chart(points, chart)
        print(f"chart: {chart}")


def _command(options: Options) -> int:
    if options.render:
        _render(options)
        return 0
    session = Session(options)
    table.read_results(session.results)  # reports a damaged file before any run starts
    if not options.list:
        return session.make()
    for target in session.chosen:
        say(f"\n{target.name}: {target.title} ({target.data})\n  {session.standing(target)}")
        for line in commands_of(target, session.seeds or target.seeds):
            say(f"  {line}")
    return 0


main = make_main(__doc__, parse, _command)

if __name__ == "__main__":
    sys.exit(main())
