"""The profile of a few steps, taken by TensorFlow's profiler between two edges of chunks."""

from __future__ import annotations

import warnings
from pathlib import Path

import tensorflow as tf

from trainer.run.cadence import Cadence

WARM_UP = 20
"""Steps before it: the first ones set things up."""


class StepProfile:
    """Take the profile of some steps, once a process. What goes wrong with it is one line, and training goes on."""

    def __init__(self, steps: int) -> None:
        """Ask for a profile.

        Args:
            steps: how many; 0 for none.
        """
        self.steps = steps
        self._begin: int | None = None
        self._running = False

    def plan(self, step: int, total_steps: int, steps_per_epoch: float) -> None:
        """Choose the steps: after 20 of this process, or fewer where no more are left; without an evaluation.

        Args:
            step: steps made.
            total_steps: of the run.
            steps_per_epoch: perhaps a fraction.
        """
        if not self.steps:
            return
        begin = min(step + WARM_UP, total_steps - self.steps)
        if begin <= step:
            warnings.warn(
                f"No profile: hooks.tensorboard.profile_steps={self.steps} of the {total_steps - step} steps to come "
                "leave none to warm up.",
                stacklevel=2,
            )
            return
        evaluation = Cadence(total_steps, steps_per_epoch, 1, None).next_evaluation(begin - 1)
        if evaluation < begin + self.steps and evaluation + 1 + self.steps <= total_steps:
            begin = evaluation + 1
        self._begin = begin

    def next_step(self, step: int) -> int | None:
        """Return the next edge that the profile needs, after `step`."""
        edges = [] if self._begin is None else [self._begin, self._begin + self.steps]
        return next((edge for edge in edges if edge > step), None)

    def at_edge(self, step: int, directory: Path) -> None:
        """Start or stop where that is due.

        Args:
            step: steps made.
            directory: the profile goes to `plugins/profile` in it.
        """
        if self._begin is None:
            return
        if self._running and step >= self._begin + self.steps:
            self.stop()
        elif not self._running and self._begin <= step < self._begin + self.steps:
            try:
                tf.profiler.experimental.start(str(directory))
                self._running = True
            except (OSError, RuntimeError, tf.errors.OpError) as error:
                self._give_up(error)

    def stop(self) -> None:
        """End the profile where one is being taken, and write it."""
        if not self._running:
            return
        self._running, self._begin = False, None
        try:
            tf.profiler.experimental.stop()
        except (OSError, RuntimeError, tf.errors.OpError) as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._begin = None
        reason = (getattr(error, "strerror", None) or str(error)).partition("\n")[0]
        warnings.warn(f"No profile could be taken: {reason}", stacklevel=3)
