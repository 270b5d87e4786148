"""How far a fit goes, and which metric says what is best."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hookline.trainer.errors import unknown_name
from hookline.trainer.input.data import Data
from hookline.trainer.run.assembly import Assembly
from hookline.trainer.run.fingerprint import data_fingerprint

LOSS, ACCURACY = "loss/total", "metric/accuracy"


@dataclass
class Plan:
    """Say how far a fit goes.

    Attributes:
        first_step: at which the first epoch of the data begins.
        total_steps: at which the fit ends.
        planned_steps: over how many steps hooks lay out their schedules: those of the first fit.
        batch_size: examples a step.
        epochs_before: of this data, before this fit.
        class_weights: by label; None for all alike.
    """

    first_step: int
    total_steps: int
    planned_steps: int
    batch_size: int
    epochs_before: int = 0
    class_weights: dict[int, float] | None = None

    def as_json(self, data: Data) -> dict[str, Any]:
        """Return what the next fit must know of this one.

        Args:
            data: that it is trained on.
        """
        steps = data.train.size / self.batch_size
        own = {key: value for key, value in asdict(self).items() if key != "class_weights"}
        return {**own, "data": data_fingerprint([data.train]), "steps_per_epoch": steps} | {
            "classes": data.classes,
            "input_shape": list(data.input_shape),
        }


def make_plan(data: Data, epochs: int, batch_size: int, known: Mapping[str, Any], *, step: int | None) -> Plan:
    """Return how far a fit goes: epochs more of the same data, or of other data from now on.

    Args:
        data: to train on.
        epochs: of this fit.
        batch_size: examples a step.
        known: what the previous fit, or the one that is resumed, recorded; empty for the first.
        step: steps made by fits before; None for the first, and for a resumed run.
    """
    size = data.train.size
    first, before, planned = 0, 0, None
    if known.get("resumes"):
        first, before, planned = (known[key] for key in ("first_step", "epochs_before", "planned_steps"))
    elif known and step is not None:
        planned = known["planned_steps"]
        if known["batch_size"] == batch_size and known["data"] == data_fingerprint([data.train]):
            first = known["first_step"]
            before = math.floor((step - first) * batch_size / size + 1e-9)
        else:
            first = step
    total = first - (-(before + epochs) * size // batch_size)
    return Plan(first, total, planned or total, batch_size, before)


def monitored(settings: Mapping[str, Any], parts: Assembly) -> dict[str, str]:
    """Return the settings of the metric that says which evaluation is the best.

    Args:
        settings: as the user gave them; empty texts where nothing was said.
        parts: assembled.

    Raises:
        UserError: no such metric.
    """
    evaluator = parts.evaluators.get("validation")
    names = evaluator.names if evaluator is not None else []
    losses = [name for name in names if name.endswith(LOSS)]
    chosen = settings["monitor"] or (ACCURACY if ACCURACY in names else next(iter(losses), LOSS))
    if names and chosen not in names:
        raise unknown_name("metric monitor", chosen, names)
    higher = "loss" not in chosen and "error" not in chosen
    return {"monitor": chosen, "monitor_mode": settings["monitor_mode"] or ("max" if higher else "min")}
