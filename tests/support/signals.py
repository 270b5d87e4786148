"""A hook that ends a run as if from outside: by a signal, at chosen steps."""

import os
import signal

from hookline.trainer.hook import HostHook


class Signal(HostHook):
    """Send a signal to this process at the end of given steps; "evaluation" sends it during the evaluation there."""

    def __init__(self, *, steps: list[int], number: int = signal.SIGTERM, evaluation: bool = False) -> None:
        self._steps, self._number, self._evaluation = steps, number, evaluation

    def state_dict(self):
        return {}

    def next_step(self, step):
        return min((each for each in self._steps if each > step), default=None)

    def on_chunk_end(self, run, report):
        if run.step in self._steps and not self._evaluation:
            os.kill(os.getpid(), self._number)

    def on_evaluation_end(self, run, report):
        if run.step in self._steps and self._evaluation:
            os.kill(os.getpid(), self._number)
