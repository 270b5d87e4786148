"""A worker that is not the chief: the same chunks, without host hooks; it writes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer.errors import WorkersError
from trainer.run.assembly import Assembly
from trainer.run.interruption import Interrupted, Interruption
from trainer.run.orders import Kind, Order, signal_of
from trainer.run.state import share_variables, trainer_variables
from trainer.run.workers import ClusterWorkers


def follow(settings: Mapping[str, Any], parts: Assembly, workers: ClusterWorkers) -> None:
    """Do what the chief orders until the run is over.

    Args:
        settings: `trainer` of the config.
        parts: built as on the chief; compared with it.
        workers: of the run.

    Raises:
        Interrupted: the run ended before its time; the chief has saved.
        WorkersError: the chief failed, or a worker is gone.
    """
    variables = trainer_variables(parts.trainer)
    interruption = Interruption(settings["max_seconds"])
    step = 0
    with interruption.listening():
        while True:
            order = workers.next_order(interruption)
            if order.kind is Kind.RUN:
                if not any(order.asked):
                    with workers.watching():
                        step, _ = parts.loop.run(step, order.step - step)
            elif order.kind is Kind.MOVE:
                step = order.step
            elif order.kind is Kind.TAKE:
                step = order.step
                workers.share(variables)
                share_variables(parts.loop.trainers)
            elif order.kind is Kind.COMPARE:
                workers.other_digests(variables)
            else:
                return _end(order)


def _end(order: Order) -> None:
    if order.kind is Kind.INTERRUPTED:
        raise Interrupted("Ended with worker 0, which has saved the run.", signal_of(order.number))
    if order.kind is Kind.FAILED:
        raise WorkersError("Worker 0 failed: its output says why.")
