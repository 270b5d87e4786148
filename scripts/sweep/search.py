"""Search with Optuna: any number of processes take trials from one study, and report their results to it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import optuna
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from hookline.hooks.monitors.study import PRUNED, TRIAL, open_storage
from hookline.scripts.sweep.open import JOURNAL, MAX_TRIALS, OpenSweep, as_text, command_of, open_sweep, run_name
from hookline.scripts.sweep.record import FAILED, FILE_NAME, INTERRUPTED, RUNNING, Slots, SweepJob, claim, exclusive
from hookline.scripts.sweep.run import SweepRun, describe_best
from hookline.train import WRONG, say
from hookline.trainer.config.command import Command
from hookline.trainer.config.preflight import preflight_each
from hookline.trainer.errors import UserError, one_line
from hookline.trainer.files import write_whole
from hookline.trainer.run.results import ACCURACY, AUTO, COMPLETE, mode_of


def begin_search(command: Command, opened: OpenSweep, share: Callable[[int], Slots]) -> Search:
    """Return a search; the first process creates its study. `share` returns the slots for a number of trials."""
    directory = opened.sweep.directory
    directory.mkdir(parents=True, exist_ok=True)
    with exclusive(directory):
        if opened.is_new and (directory / FILE_NAME).exists():  # another process was faster
            opened = open_sweep(replace(command, directory=str(directory)))
        search = Search(opened, command.storage)
        search.slots = share(search.missing)
        opened.sweep.threads = opened.sweep.threads or search.slots.threads
        opened.sweep.write()
    return search


class Search(SweepRun):
    """Run the trials of a study, concurrently with any number of other processes.

    The study is the only record of the trials. The lock of a trial is held by the process that took it and by that of
    its run, so it is free exactly when both are gone. A process that finds an unfinished trial unlocked resumes it.
    """

    def __init__(self, opened: OpenSweep, storage: str | None) -> None:
        """Open the study, or create it for a new sweep."""
        super().__init__(opened.sweep, Slots(({},), 1))
        self.opened = opened
        self._config = opened.checked[0].config
        self._storage = storage or str((self.sweep.directory / JOURNAL).absolute())
        self._study = self._open(_direction(self._config))
        self._ended: set[int] = set()  # numbers of trials that ended in this process

    def _open(self, direction: StudyDirection) -> optuna.Study:
        named: dict[str, Any] = {"study_name": str(self.sweep.study)}
        try:
            named["storage"] = open_storage(self._storage)
            if not self.opened.is_new:
                return optuna.load_study(**named)
            study = optuna.create_study(**named, direction=direction, load_if_exists=True)
        except Exception as error:  # whatever the driver of a database raises; a KeyError if the study is missing
            why = one_line(f"{type(error).__name__}: {error}")
            raise UserError(f"The study {self.sweep.study} cannot be opened: {why}. Expected its --storage.") from error
        if study.trials:
            raise UserError(f"The storage has a study '{self.sweep.study}' already. Expected another name in --sweep.")
        return study

    @property
    def missing(self) -> int:
        """Return how many trials have not ended, including those that have not begun."""
        ended = sum(trial.state.is_finished() for trial in self._study.get_trials(deepcopy=False))
        return max(0, (self.sweep.trials or 0) - ended)

    def next_job(self) -> SweepJob | None:
        """Return an abandoned trial or a new one; None if other processes run the rest."""
        while True:
            with exclusive(self.sweep.directory):
                job = self._abandoned() or self._new()
            if job is None:
                return None
            try:
                (self.checked[job.number],) = preflight_each(command_of(self.sweep), [job.overrides])
                return job
            except UserError as error:  # values that are valid one by one, but not together
                self.worst = max(self.worst, WRONG)
                write_whole(self.sweep.log(job), f"Error: {error}\n")
                say(f"[{job.number}/{self.sweep.trials}] {FAILED:<11} {self.label(job)}: Error: {error}")
                self.record(replace(job, status=FAILED))

    def _abandoned(self) -> SweepJob | None:
        """Return an unfinished trial that no process holds; record those that ended without being recorded."""
        for trial in self._study.get_trials(states=(TrialState.RUNNING,)):
            job = self._job(trial.number, trial.params)
            if job.number in self._ended or not self._claim(job):
                continue
            status = self.sweep.summary(job).get("status")
            is_told = self._study.trials[trial.number].state.is_finished()  # by another process, before it unlocked it
            if not is_told and status not in (*COMPLETE, FAILED):
                return job
            self.record(replace(job, status=str(status)))
        return None

    def _new(self) -> SweepJob | None:
        """Return a new trial; None if there are enough."""
        trials = self._study.get_trials()
        if len(trials) >= (self.sweep.trials or 0):
            return None
        params = self._suggest(trials)
        job = self._job(len(trials), params)
        if not self._claim(job):
            return None
        self._study.add_trial(  # in one call: a kill leaves all of it, or nothing
            optuna.trial.create_trial(
                state=TrialState.RUNNING, params=params, distributions=self.opened.space, user_attrs={"run": job.run}
            )
        )
        return job

    def _suggest(self, trials: Sequence[FrozenTrial]) -> dict[str, Any]:
        """Return Optuna's suggestion after these trials, which is determined by the trials and the seed."""
        seed = (self._config["seed"] * MAX_TRIALS + len(trials) + 1) % 2**32
        sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)  # running trials count as bad
        study = optuna.create_study(direction=self._study.direction, sampler=sampler)
        study.add_trials(trial for trial in trials if trial.state != TrialState.WAITING)
        space, found = self.opened.space, study.ask(self.opened.space).params
        return {
            key: float(as_text(each, space[key])) if isinstance(each, float) else each for key, each in found.items()
        }

    def _job(self, number: int, params: Mapping[str, Any]) -> SweepJob:
        """Return the job of a trial; `number` is the study's, from 0."""
        own = [f"{key}={as_text(params[key], each)}" for key, each in self.opened.space.items()]
        return SweepJob(number + 1, [*self.opened.fixed, *own], run_name(number + 1, own))

    def label(self, job: SweepJob) -> str:
        """Return the overrides that distinguish a trial from the others."""
        return " ".join(job.overrides[len(self.opened.fixed) :])

    def _claim(self, job: SweepJob) -> bool:
        if (descriptor := claim(self.sweep.directory, job.number)) is not None:
            self.claims[job.number] = descriptor
        return descriptor is not None

    def environment(self, job: SweepJob) -> Mapping[str, str]:
        return {TRIAL: json.dumps({"storage": self._storage, "study": self.sweep.study, "number": job.number - 1})}

    def record(self, job: SweepJob) -> None:
        """Record the end of a trial in the study, and unlock it; an interrupted trial stays open, to be resumed."""
        if job.status == RUNNING:
            return
        self._ended.add(job.number)
        summary = self.sweep.summary(job)
        value = (summary.get("best") or {}).get("value") if summary.get("status") in COMPLETE else None
        try:
            if job.status != INTERRUPTED:
                state = TrialState.COMPLETE if value is not None else TrialState.FAIL
                if str(summary.get("stop_reason")).startswith(PRUNED):
                    state, value = TrialState.PRUNED, None
                self._study.tell(job.number - 1, value, state=state, skip_if_finished=True)
        finally:
            os.close(self.claims.pop(job.number))

    def describe_end(self) -> list[str]:
        """Return lines on the trials that failed, the number that were pruned, and the best one."""
        trials = self._study.trials
        failed = [self._job(trial.number, trial.params) for trial in trials if trial.state == TrialState.FAIL]
        lines = [f"Job {job.number} {FAILED}: see {self.sweep.log(job)}" for job in failed]
        if pruned := sum(trial.state == TrialState.PRUNED for trial in trials):
            lines.append(f"{pruned} of {len(trials)} trials were pruned.")
        if any(trial.state == TrialState.COMPLETE for trial in trials):
            best = self._job(self._study.best_trial.number, self._study.best_params)
            value = describe_best(self.sweep.summary(best)).rstrip(", ")
            lines.append(f"Best {value}: {self.label(best)}")
        return lines


def _direction(config: Mapping[str, Any]) -> StudyDirection:
    monitor = str(config["trainer"]["monitor"])
    if monitor == AUTO and "metrics" in config["task"]:
        raise UserError("A search needs to know what is best. Set trainer.monitor, such as trainer.monitor=loss/total.")
    mode = mode_of(ACCURACY if monitor == AUTO else monitor, config["trainer"]["monitor_mode"])
    return StudyDirection.MAXIMIZE if mode == "max" else StudyDirection.MINIMIZE
