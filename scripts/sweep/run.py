"""Run the jobs of a sweep."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hookline.scripts.sweep.open import added_threads, job_arguments, own_overrides
from hookline.scripts.sweep.record import FAILED, INTERRUPTED, RUNNING, Slots, Sweep, SweepJob, record
from hookline.train import SIGNALLED, say
from hookline.trainer.config.preflight import Job
from hookline.trainer.errors import UserError, as_typed
from hookline.trainer.files import open_append, open_file
from hookline.trainer.run.results import format_value, is_complete, short_name

TRAIN = Path(__file__).resolve().parents[2] / "train.py"
TETHER = Path(__file__).resolve().parent / "tether.py"
ERROR = re.compile(r"^(Error: |\w*(Error|Exception)\b.*: )")
LINE_LENGTH = 300


@dataclass
class JobProcess:
    """Hold a process that was started."""

    # leads a session of its own, so that Ctrl-C on the terminal reaches the sweep only
    process: subprocess.Popen[bytes]
    log: Path  # its output, appended to that of earlier processes of the job
    offset: int  # where its part of the log begins
    began: float  # by `time.monotonic`

    def exit_code(self) -> int | None:
        """Return its exit code as in a shell; None while it runs. After it ends, kill the rest of its process group."""
        code = self.process.poll()
        if code is None:
            return None
        self.kill()
        return shell_code(code)

    def kill(self) -> None:
        """Kill the process group at once."""
        with suppress(ProcessLookupError, PermissionError):  # macOS: the group has ended
            os.killpg(self.process.pid, signal.SIGKILL)

    def error_line(self) -> str:
        """Return the line of its log that looks like an error message, or else the last line."""
        try:
            with open_file(self.log) as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(self.offset, size - 20_000))
                lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
        except OSError:
            return ""
        found = next((line for line in reversed(lines) if ERROR.match(line)), lines[-1] if lines else "")
        return found if len(found) <= LINE_LENGTH else f"{found[: LINE_LENGTH - 3]}..."


def shell_code(code: int) -> int:
    """Return the exit code of a process as in a shell: 137 for one killed by SIGKILL."""
    return code if code >= 0 else SIGNALLED - code


POLL_SECONDS = 0.05
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ENDED = (SIGNALLED + signal.SIGINT, SIGNALLED + signal.SIGTERM)
"""Exit codes of a job that saved and ended on a signal."""


class SweepRun:
    """Run jobs of a sweep until there are no more, or a signal ends it."""

    def __init__(
        self, sweep: Sweep, slots: Slots, *, jobs: Iterable[SweepJob] = (), checked: Mapping[int, Job] | None = None
    ) -> None:
        """Set the slots for jobs that run at once; `checked` are jobs by number."""
        self.sweep, self.slots = sweep, slots
        self.checked = dict(checked or {})
        self.claims: dict[int, int] = {}  # locks of jobs by number, which their processes share
        self.worker = 0  # index of this task, if several share each run; only worker 0 records
        self.worst = 0  # exit code
        self._waiting = iter(jobs)
        self._running: dict[int, tuple[SweepJob, JobProcess]] = {}
        self._signals: list[int] = []
        self._passed_on = 0
        self._is_stopping = False

    def next_job(self) -> SweepJob | None:
        """Return the next job to start; None if there is none."""
        return next(self._waiting, None)

    def arguments(self, job: SweepJob) -> list[str]:
        return job_arguments(self.sweep, job, added_threads(self.sweep, self.checked[job.number]))

    def label(self, job: SweepJob) -> str:
        """Return the overrides that distinguish a job from the others, or all of them if none does."""
        return " ".join(own_overrides(job.overrides, [each.overrides for each in self.sweep.jobs]) or job.overrides)

    def environment(self, job: SweepJob) -> Mapping[str, str]:
        """Return environment variables of a job's process that are not logged."""
        return {}

    def record(self, job: SweepJob) -> None:
        record(self.sweep, job)

    def ended(self, job: SweepJob) -> None:
        """Handle the end of a job; subclasses may override this."""

    def run(self) -> int:
        """Run the jobs and return the worst exit code, at least 128 + its number if a signal ended the sweep."""
        tether, held = os.pipe()
        try:
            with _listening(self._signals.append):
                while self._step(tether):
                    time.sleep(POLL_SECONDS)
        finally:
            for job, process in self._running.values():
                process.kill()
                process.process.wait()
                self._change(job, INTERRUPTED, process.exit_code())
            self._running.clear()
            os.close(tether)
            os.close(held)  # last: closing it kills the jobs
        if self._signals:
            self.worst = max(self.worst, SIGNALLED + self._signals[0])
        return self.worst

    def stop(self) -> None:
        """Make the running jobs save and end, and wait for them; for a signal handler that then ends the process.

        Nothing is recorded, as the interrupted code may hold the locks: the next process finds what the runs saved.
        """
        self._is_stopping = True
        if not self._signals:
            self._signals.append(signal.SIGTERM)
        while self._step(None):
            time.sleep(POLL_SECONDS)

    def _step(self, tether: int | None) -> bool:
        """Pass signals on, handle jobs that ended, and start others; return whether any job is running."""
        self._pass_signals_on()
        for place, (job, process) in list(self._running.items()):
            if (code := process.exit_code()) is not None:
                del self._running[place]
                self._end(job, process, code)
        for place in range(len(self.slots)):
            if place in self._running or self._signals or tether is None:
                continue
            if (following := self.next_job()) is None:
                break
            self._start(place, following, tether)
        return bool(self._running)

    def _start(self, place: int, job: SweepJob, tether: int) -> None:
        """Start the process of a job, which ends with this one at the latest."""
        arguments, shown = self.arguments(job), self.slots.environments[place]
        self._change(job, RUNNING, None)
        variables = [f"{name}={value}" for name, value in shown.items()]
        log = self.sweep.log(job, self.worker)
        with open_append(log) as file:
            typed = " ".join([*variables, shlex.join(["python", TRAIN.name, *arguments])])
            file.write(f"$ {as_typed(typed)}\n".encode())
            process = subprocess.Popen(
                [sys.executable, str(TETHER), str(tether), str(TRAIN), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=[tether, *(self.claims[number] for number in self.claims if number == job.number)],
                env={**os.environ, "PYTHONUNBUFFERED": "1", **shown, **self.environment(job)},
            )
            self._running[place] = (job, JobProcess(process, log, file.tell(), time.monotonic()))
        self._line(job, "resumed" if arguments[0].startswith("resume=") else "started")

    def _end(self, job: SweepJob, process: JobProcess, code: int) -> None:
        summary = self.sweep.summary(job)
        status = _status(code, summary, asked=bool(self._signals))
        seconds = time.monotonic() - process.began
        job.seconds = round(job.seconds + seconds, 3)
        self._change(job, status, code)
        if status != INTERRUPTED or not self._signals:
            self.worst = max(self.worst, code or int(status == FAILED))
        took = f"{seconds:.1f} s"
        if status == FAILED:
            reason = process.error_line() if code else "it left no summary.json"
            self._line(job, status, f": {reason} (exit code {code}, {took}). Log: {process.log}")
        elif status == INTERRUPTED:
            self._line(job, status, f" after {took}")
        else:
            reason = str(summary.get("stop_reason") or "").partition(":")[0]  # such as "early stopping"
            self._line(job, status, f"{reason and f' by {reason}'}: {describe_best(summary)}{took}")
        self.ended(job)

    def _change(self, job: SweepJob, status: str, code: int | None) -> None:
        job.status, job.exit_code = status, code
        try:
            if not (self.worker or self._is_stopping):
                self.record(job)
        except (OSError, UserError) as error:  # the jobs continue; their results are in their own directories
            say(f"Warning: {error}")

    def _line(self, job: SweepJob, what: str, more: str = "") -> None:
        total = self.sweep.trials or len(self.sweep.jobs)
        say(f"[{job.number}/{total}] {what:<11} {self.label(job)}{more}")

    def _pass_signals_on(self) -> None:
        """Make the running jobs save and end at the first signal, and kill them at the next."""
        if len(self._signals) == self._passed_on:
            return
        first, self._passed_on = not self._passed_on, len(self._signals)
        name = signal.Signals(self._signals[0]).name
        if first and self._running:
            count = len(self._running)
            say(f"{name}: {count} job{'s' if count > 1 else ''} will save and end. A second signal ends them at once.")
        for _, process in self._running.values():
            if first and len(self._signals) == 1:
                with suppress(ProcessLookupError):
                    process.process.send_signal(signal.SIGINT if self._signals[0] == signal.SIGINT else signal.SIGTERM)
            else:
                process.kill()


def _status(code: int, summary: dict[str, Any], *, asked: bool) -> str:
    """Return the status of a job that ended; one that reached trainer.max_seconds exits with 0, but is not complete."""
    if code == 0:
        if is_complete(summary):
            return str(summary["status"])
        return INTERRUPTED if summary.get("status") == "paused" else FAILED
    return INTERRUPTED if code in ENDED or (asked and code > SIGNALLED) else FAILED


def describe_best(summary: Mapping[str, Any]) -> str:
    """Return the best value of the monitored metric, such as "accuracy 0.9722, "; empty if there is none."""
    best = summary.get("best") or {}
    if best.get("value") is None:
        return ""
    return f"{short_name(str(best['monitor']))} {format_value(best['value'])}, "


@contextmanager
def _listening(note: Callable[[int], None]) -> Iterator[None]:
    """Record signals; those that were already ignored when the process started, as with nohup, stay ignored."""
    heard = [number for number in SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, lambda received, frame: note(received)) for number in heard}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)
