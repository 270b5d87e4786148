"""A worker process that trains beside the chief."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hookline.trainer.errors import WorkersError
from hookline.trainer.run.assembly import Assembly
from hookline.trainer.run.interruption import Interrupted, Interruption
from hookline.trainer.run.state import share_variables, trainer_variables
from hookline.trainer.run.workers import ClusterWorkers, Kind, Order, signal_of


def follow(settings: Mapping[str, Any], parts: Assembly, workers: ClusterWorkers) -> None:
    """Follow the chief's orders until the run is over."""
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
