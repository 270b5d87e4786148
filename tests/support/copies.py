"""A hook that keeps a checkpoint of every step, and copies of the run directory as a SIGKILL would leave it."""

import os
import shutil
import threading
from pathlib import Path

from hookline.trainer.hook import HostHook


class Copies(HostHook):
    """Copy the run after every step, or some, with its older checkpoints, and then save under a tag of its own."""

    priority = 95  # in an evaluation: after other hooks have written their results, before anything is saved
    silent = False  # for all instances: nothing is saved or copied, and the loop returns as it does without it

    def __init__(self, *, to: str, steps: list[int] | None = None) -> None:
        self._to, self._steps = Path(to), steps

    def state_dict(self):
        return {}

    def next_step(self, step):
        later = [step + 1] if self._steps is None else [each for each in self._steps if each > step]
        return None if self.silent else min(later, default=None)

    def on_chunk_end(self, run, report):
        if not self.silent and (self._steps is None or run.step in self._steps):
            self._copy(run, f"after_{run.step}")
            run.control.save(f"after {run.step}")

    def on_evaluation_end(self, run, report):
        if not self.silent and self._steps is None and report.split == "validation":
            self._copy(run, f"in_evaluation_{run.step}")

    def _copy(self, run, name):
        for thread in threading.enumerate():
            if thread.name == "checkpoints":  # a kill takes no time, a copy does
                thread.join()
        shutil.copytree(run.directory, self._to / name, copy_function=_copy_file)


def _copy_file(source, target):
    if "checkpoints" in Path(source).parts:
        os.link(source, target)
    else:
        shutil.copy2(source, target)
