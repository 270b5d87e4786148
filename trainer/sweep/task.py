"""One job of a sweep as a task of a cluster: submitit runs it on a node, and again when its time there was over."""

from __future__ import annotations

import fcntl
import importlib
import os
import sys
from pathlib import Path
from typing import Any

from trainer.config.preflight import preflight_each
from trainer.files import open_lock
from trainer.sweep.open import command_of
from trainer.sweep.process import TRAIN
from trainer.sweep.record import SweepJob, read_summary, read_sweep, record
from trainer.sweep.run import SweepRun
from trainer.sweep.slots import Slots
from trainer.sweep.start import added_threads, is_done, job_arguments


class SweepTask:
    """Run a job where its run stands: from its start, on from a checkpoint, or not at all when it is complete.

    So a task may be submitted twice; nothing is made twice.
    """

    def __init__(self, directory: Path, number: int, place: Path, script: Path = TRAIN) -> None:
        """Name the job.

        Args:
            directory: of the sweep, which every node sees.
            number: of the job.
            place: working directory in which the sweep was submitted.
            script: that the job runs.
        """
        self._named = (directory, number, place, script)
        self._run: SweepRun | None = None

    def __call__(self) -> int:
        """Run the job and return its exit code."""
        directory, number, place, script = self._named
        os.chdir(place)
        descriptor = open_lock(directory / f".{number:02}.lock")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return self._once(directory, number, script)
        except BlockingIOError:
            _say(f"Job {number} runs already, by another task.")
            return 0
        finally:
            os.close(descriptor)

    def _once(self, directory: Path, number: int, script: Path) -> int:
        sweep = read_sweep(directory)
        job = next(each for each in sweep.jobs if each.number == number)
        if is_done(sweep, job):
            job.status = str(read_summary(sweep.run_directory(job))["status"])
            record(sweep, job)
            _say(f"Job {number} is complete: nothing is left to do.")
            return 0
        (checked,) = preflight_each(command_of(sweep), [job.overrides])
        left: list[SweepJob] = [job]
        self._run = SweepRun(
            sweep,
            Slots(({},), 1),
            next_job=lambda: left.pop() if left else None,
            arguments=lambda each: job_arguments(sweep, each, added_threads(sweep, checked)),
            label=lambda each: " ".join(each.overrides),
            say=_say,
            script=script,
        )
        return self._run.run()

    def checkpoint(self) -> Any:
        """Let the run save and end, and return what shall be queued; submitit calls this before the time is over."""
        submitit: Any = importlib.import_module("submitit")  # an extra, which type checks do without
        if self._run is not None:
            self._run.stop()
        return submitit.helpers.DelayedSubmission(SweepTask(*self._named))


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
