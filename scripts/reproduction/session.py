"""One call of the command: what is done, what is to be made, which rows are kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hookline.scripts.reproduction import rows as conditions
from hookline.scripts.reproduction.rows import SCRIPTS, Job, Row, job_name, jobs_of, make_export, make_row
from hookline.scripts.reproduction.runs import Runs, check, estimate, open_runs, seconds_before, seconds_here
from hookline.scripts.reproduction.table import TABLE, merge, read_results, render_short, write_results, write_table
from hookline.scripts.reproduction.targets import Target
from hookline.scripts.sweep.run import SIGNALLED, TRAIN
from hookline.trainer.errors import UserError
from hookline.trainer.run.lock import locked


@dataclass
class Session:
    """Hold what a call was asked to do.

    Attributes:
        targets: all.
        chosen: of these.
        seeds: in place of the targets', or None.
        places: of the data that was given.
        results: path of results.json.
        say: shows a line.
        own_targets: whether the targets are the user's, so that their command lines are checked first.
        script: that each run is a process of.
        scripts: folder with export.py and evaluate.py.
    """

    targets: Mapping[str, Target]
    chosen: Sequence[Target]
    seeds: tuple[int, ...] | None
    places: Mapping[str, Path]
    results: Path
    say: Callable[[str], None]
    own_targets: bool = False
    script: Path = TRAIN
    scripts: Path = SCRIPTS
    _runs: Runs | None = None
    _jobs: dict[str, dict[str, Job]] = field(default_factory=dict)
    _measured: dict[tuple[str, str], float] = field(default_factory=dict)
    _settled: set[str] = field(default_factory=set)
    _faults: int = 0

    @property
    def runs(self) -> Runs:
        """Return the runs of the directory that was opened."""
        if self._runs is None:
            raise RuntimeError("no directory was opened")
        return self._runs

    def look(self, out: Path) -> None:
        """Open a directory to see how the targets stand; nothing is written."""
        self._measured = seconds_before(read_results(self.results), self.targets)
        self._runs = open_runs(out, self.places, self.say, self.script)
        for target in self.chosen:
            self._jobs[target.name] = jobs_of(target, self.targets, self._seeds(target))
            if self.lacks(target) is None:
                self.runs.add(self._jobs[target.name].values())

    def run(self, out: Path, at_once: int) -> int:
        """Make what is missing, keep the rows whose runs are all there, and return the exit code."""
        self.look(out)
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"out={out} cannot be made: {error.strerror}. Give another out=.") from error
        with locked(out):
            self.look(out)  # again: another process may have ended since
            if self.own_targets:
                check([job for target in self._able() for job in self._jobs[target.name].values()])
            self._keep_not_run()
            self._settle()
            self.say(self._left())
            code = self.runs.make(at_once, self._after)
        for target in self.chosen:
            self.say(f"{target.name}: {self.standing(target)}")
        self.say(f"runs: {out}; rows: {self.results}; table: {self.results.with_name(TABLE)}")
        return code if code > SIGNALLED else int(code > 0 or self._faults > 0)

    def lacks(self, target: Target) -> str | None:
        """Return why a target cannot be run, or None."""
        missing = [name for name in target.needs if name not in self.places]
        if not missing:
            return None
        return f"needs {' and '.join(f'{name}=<path>' for name in missing)}, which was not given"

    def standing(self, target: Target) -> str:
        """Return how a target stands, in one line."""
        if (reason := self.lacks(target)) is not None:
            return f"not run: {reason}"
        jobs = self._jobs[target.name]
        done = sum(self.runs.is_done(name) for name in jobs)
        text = f"{done} of {len(jobs)} runs done"
        left = [job for name, job in jobs.items() if not self.runs.is_done(name)]
        return f"{text}, {self._estimate(left)} left" if left else text

    def _able(self) -> list[Target]:
        return [target for target in self.chosen if self.lacks(target) is None]

    def _seeds(self, target: Target) -> tuple[int, ...]:
        return self.seeds or target.seeds

    def _left(self) -> str:
        missing = self.runs.missing()
        total = len({name for target in self._able() for name in self._jobs[target.name]})
        if not missing:
            return f"All {total} runs are done."
        return (
            f"{total - len(missing)} of {total} runs are done, {len(missing)} are left ({self._estimate(missing)}); "
            f"logs: {self.runs.sweep.directory}/<number>.log"
        )

    def _estimate(self, jobs: Sequence[Job]) -> str:
        return estimate(jobs, self._measured | seconds_here(self.runs))

    def _after(self) -> None:
        """Keep the rows that have become complete, and say what is left."""
        self._settle()
        if missing := self.runs.missing():
            self.say(f"{len(missing)} runs are left ({self._estimate(missing)})")

    def _settle(self) -> None:
        for target in self._able():
            names = self._jobs[target.name]
            if target.name in self._settled or not all(self.runs.is_done(name) for name in names):
                continue
            self._settled.add(target.name)
            try:
                self._keep(target)
            except UserError as error:
                self._faults += 1
                self.say(f"{target.name}: no row. {error}")

    def _keep(self, target: Target) -> None:
        seeds = self._seeds(target)
        for export in target.exports.values():
            for seed in seeds:
                make_export(self.runs.directory(job_name(target.runs[export.run], seed)), export, self.scripts)
        row = make_row(
            target,
            self.targets,
            seeds,
            self.runs.directory,
            conditions.read(self.runs.sweep.directory),
            lambda name: self.runs.recorded(name).run,
        )
        self.say(render_short(row))
        if absent := [str(seed) for seed in target.seeds if seed not in seeds]:
            self.say(f"{target.name}: not kept in {self.results.name}: seed {', '.join(absent)} is not among the runs")
            return
        self._write(row)

    def _keep_not_run(self) -> None:
        for target in self.chosen:
            if (reason := self.lacks(target)) is not None:
                self.say(f"{target.name}: not run: {reason}")
                facts = {key: getattr(target, key) for key in ("name", "title", "recipe", "data")}
                self._write({**facts, "not_run": f"{reason}"})

    def _write(self, row: Row) -> None:
        before = read_results(self.results)
        rows = merge(before, row, list(self.targets))
        if rows != before:
            write_results(self.results, rows)
        else:
            write_table(self.results, rows)
