"""A run that works piece by piece: it is paused between two pieces, and everything else is as in `train.py`."""

from __future__ import annotations

import threading
import time
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from hookline.trainer.hook import HostHook

if TYPE_CHECKING:
    from collections.abc import Callable

    from hookline.trainer.run.control import Report, Run


class Gate(HostHook):
    """Hold a run when it begins, and after each piece of work until the next one is asked for.

    The run trains in a thread of its own. State saved: none.
    """

    def __init__(self) -> None:
        """Make the gate; it is closed."""
        self.name = "gate"
        self._asked: SimpleQueue[int] = SimpleQueue()
        self._done: SimpleQueue[BaseException | None] = SimpleQueue()
        self._end = 0

    def start(self, train: Callable[[], None]) -> None:
        """Let a run train until it comes to the gate."""

        def run() -> None:
            try:
                train()
                raise RuntimeError("The run ended.")
            except BaseException as error:  # noqa: BLE001 - raised again where the work is asked for
                self._done.put(error)

        threading.Thread(target=run, daemon=True).start()
        self._wait()

    def work(self, steps: int) -> float:
        """Let the run make so many steps, and return the seconds that they took."""
        start = time.perf_counter()
        self._asked.put(steps)
        self._wait()
        return time.perf_counter() - start

    def _wait(self) -> None:
        if (error := self._done.get()) is not None:
            raise error

    def state_dict(self) -> dict[str, Any]:
        return {}

    def next_step(self, step: int) -> int:
        return self._end

    def on_fit_begin(self, run: Run) -> None:
        self._hold(run)

    def on_chunk_end(self, run: Run, report: Report | None) -> None:
        if run.step == self._end:
            self._hold(run)

    def _hold(self, run: Run) -> None:
        self._done.put(None)
        self._end = run.step + self._asked.get()
