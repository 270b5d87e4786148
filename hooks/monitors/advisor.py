"""Advisor: point out settings that fail silently, before training and at evaluations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from hookline.hooks.monitors.advice import (
    constant_advice,
    direction_advice,
    input_range_advice,
    late_advice,
    norm_batch_advice,
)
from hookline.trainer.hook import HostHook

if TYPE_CHECKING:
    from hookline.trainer.run.control import Report
    from hookline.trainer.run.run import Run

EXAMPLES = 64


class Advisor(HostHook):
    """Warn of silent mistakes that no technique checks for, in one line each.

    - Before training: a monitor with the wrong direction; masks or quantization that become final when hardly any step
      is left; batch norm over fewer than 8 examples; raw pixels into a network without a norm at its first layer.
    - At evaluations: a monitor that is the same in each of the first 5.

    Technique hooks give their own advice.

    Group:
        guard

    State:
        values: the monitor's values so far.

    Cost:
        64 training examples are read once, before the first step. One comparison per evaluation.

    Pitfalls:
        tests/hooks/monitors/test_advisor.py: there is no advice when all is well, because users would soon ignore it.

    Example:
        python train.py recipe=baseline trainer.monitor_mode=max
    """

    def __init__(self) -> None:
        """Set up."""
        self._monitor = ""
        self._values: list[float] = []

    def state_dict(self) -> dict[str, Any]:
        """Return the monitor's values so far; recording ends with the first that differs from those before."""
        return {"values": list(self._values)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._values = list(state["values"])

    def advise(self, run: Run) -> Sequence[str]:
        models = {name: network.model for name, network in run.networks.items() if not network.fixed}
        settings = run.config.get("trainer", {})
        lines = [
            direction_advice(run.best.monitor, run.best.mode),
            late_advice(run),
            norm_batch_advice(
                models,
                batch_size=run.batch_size,
                replicas=run.trainer.replica.count,
                micro_batches=settings.get("accumulation_steps", 1),
                synchronized=(run.config.get("hooks") or {}).get("synchronized_batch_norm") is not None,
            ),
            input_range_advice(models, *_input_range(run)),
        ]
        return [line for line in lines if line is not None]

    def on_fit_begin(self, run: Run) -> None:
        self._monitor = run.best.monitor
        if not run.step:
            self._values = []  # of an earlier fit

    def on_evaluation_end(self, run: Run, report: Report) -> None:
        if report.split == "validation" and len(set(self._values)) < 2:
            self._values.append(report.values[run.best.monitor])

    def warning(self, values: Mapping[str, float]) -> str | None:
        return constant_advice(self._monitor, self._values)


def _input_range(run: Run) -> tuple[float, float]:
    """Return the smallest and the largest value of some training examples; zeros where inputs are not numbers."""
    rows = run.training.indices(tf.constant(0, tf.int64))[:EXAMPLES]
    inputs = run.training.read(rows)["inputs"]
    if not isinstance(inputs, tf.Tensor) or not inputs.dtype.is_floating:
        return 0.0, 0.0
    return float(tf.reduce_min(inputs)), float(tf.reduce_max(inputs))
