"""When masks change, and how sparse they are then: plain numbers, computed before anything is traced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hookline.hooks.options import check_choice, check_epochs, check_integer, check_number, epoch_start
from hookline.hooks.pruning.options import check_sparsity
from hookline.trainer.errors import UserError

RISING, UPDATED, ITERATIVE = ("polynomial", "splicing"), ("constant", "polynomial", "splicing"), ("iterative",)
USERS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "initial_sparsity": (0.0, RISING),
    "power": (3.0, RISING),
    "end_epoch": (None, UPDATED),
    "frequency": (100, UPDATED),
    "frequency_growth": (1.0, UPDATED),
    "stages": (None, ITERATIVE),
    "stage_epochs": (None, ITERATIVE),
    "hysteresis": (1.1, ("splicing",)),
}
"""Options that only some schedules use: the default, and which they are."""
SCHEDULES = ("one_shot", "constant", "polynomial", "iterative", "splicing")


def check_used(schedule: str, given: Mapping[str, Any]) -> None:
    """Refuse an option that is set although the schedule does not use it."""
    for option, (default, users) in USERS.items():
        if schedule not in users and given[option] != default:
            raise UserError(
                f"{option}={given[option]} has no effect with schedule={schedule}. "
                f"Expected {option}={'null' if default is None else default}, or schedule={' or '.join(users)}."
            )


def update_steps(begin: int, end: int, frequency: int, growth: float = 1.0) -> list[int]:
    """Return the steps at which masks change: `begin`, then one after each interval, and in any case `end`."""
    steps, interval, position = [], float(frequency), float(begin)
    while round(position) < end:
        steps.append(round(position))
        position += interval
        interval *= growth
    return [*steps, end]


def polynomial_sparsity(step: int, *, begin: int, end: int, initial: float, final: float, power: float) -> float:
    """Return s_f + (s_i - s_f) (1 - (t - t0) / (t1 - t0))^power (Zhu and Gupta 2017, arXiv 1710.01878, equation 1)."""
    if step >= end:
        return final
    left = 1.0 - max(0, step - begin) / (end - begin)
    return final + (initial - final) * left**power


def kept_units(units: int, sparsity: float, minimum: int = 1) -> int:
    """Return how many of `units` stay: all but round(sparsity * units), and `minimum` of them in any case."""
    return max(min(minimum, units), units - round(sparsity * units))


@dataclass(frozen=True)
class Schedule:
    """Hold a schedule in epochs."""

    name: str  # one of SCHEDULES
    begin_epoch: float  # when the first masks are made
    end_epoch: float | None
    """By the end of which the masks are final; None for halfway from the begin to the end of training."""
    frequency: int  # steps between updates
    frequency_growth: float  # how many times as long as the last each interval is
    initial_sparsity: float  # of the first masks
    power: float  # of the polynomial
    stages: int  # how many stages an iterative schedule has
    stage_epochs: float  # epochs from one stage to the next

    def steps(self, total_steps: int, steps_per_epoch: float) -> list[int]:
        """Return the steps at which masks change, rising."""
        begin = epoch_start(self.begin_epoch, steps_per_epoch)
        if begin >= total_steps:
            raise _too_late("begin_epoch", self.begin_epoch, total_steps, steps_per_epoch)
        if self.name == "one_shot":
            return [begin]
        if self.name == "iterative":
            return self._stage_steps(total_steps, steps_per_epoch)
        if self.end_epoch is None:
            end = begin + (total_steps - 1 - begin) // 2
        else:
            end = max(begin, epoch_start(self.end_epoch, steps_per_epoch) - 1)
            if end >= total_steps:
                raise _too_late("end_epoch", self.end_epoch, total_steps, steps_per_epoch)
        return update_steps(begin, end, self.frequency, self.frequency_growth)

    def _stage_steps(self, total_steps: int, steps_per_epoch: float) -> list[int]:
        epochs = [self.begin_epoch + stage * self.stage_epochs for stage in range(self.stages)]
        steps = [epoch_start(epoch, steps_per_epoch) for epoch in epochs]
        if len(set(steps)) < len(steps):
            raise UserError(f"stage_epochs={self.stage_epochs} is less than a step. Expected a longer stage.")
        if steps[-1] >= total_steps:
            raise _too_late(f"the last of {self.stages} stages, epoch", epochs[-1], total_steps, steps_per_epoch)
        return steps

    def sparsities(self, steps: Sequence[int], final: float) -> list[float]:
        """Return the sparsity after each update of a schedule without stages."""
        initial = self.initial_sparsity if self.name in RISING else final
        begin, end = steps[0], steps[-1]
        return [
            polynomial_sparsity(step, begin=begin, end=end, initial=initial, final=final, power=self.power)
            for step in steps
        ]


def parse_schedule(given: Mapping[str, Any]) -> Schedule:
    """Return a schedule from the values of a config."""
    name, end_epoch, stage_epochs = (given[key] for key in ("schedule", "end_epoch", "stage_epochs"))
    check_choice("schedule", name, SCHEDULES)
    begin = check_epochs("begin_epoch", given["begin_epoch"])
    if end_epoch is not None:
        end_epoch = check_epochs("end_epoch", end_epoch)
        if end_epoch < begin:
            raise UserError(f"end_epoch={end_epoch} is before begin_epoch={begin}. Expected an end after the begin.")
    if name == "iterative" and not given["stages"]:
        raise UserError("schedule=iterative needs stages. Expected a list of sparsities, such as stages=[0.5,0.8,0.9].")
    if name == "iterative":
        expected = "a number of epochs above 0 from one stage to the next, such as 10"
        stage_epochs = check_number("stage_epochs", stage_epochs, minimum=0.0, above_minimum=True, expected=expected)
    return Schedule(
        name=name,
        begin_epoch=begin,
        end_epoch=end_epoch,
        frequency=check_integer("frequency", given["frequency"]),
        frequency_growth=check_number(
            "frequency_growth", given["frequency_growth"], minimum=1.0, expected="a number of at least 1"
        ),
        initial_sparsity=check_sparsity("initial_sparsity", given["initial_sparsity"]),
        power=check_number(
            "power", given["power"], minimum=0.0, above_minimum=True, expected="a number above 0, such as 3"
        ),
        stages=given["stages"],
        stage_epochs=stage_epochs if name == "iterative" else 0.0,
    )


def _too_late(what: str, epoch: float, total_steps: int, steps_per_epoch: float) -> UserError:
    epochs = total_steps / steps_per_epoch
    return UserError(
        f"Pruning does not fit into the run: {what}={epoch:g} is after its end, epoch {epochs:.4g}, step {total_steps}."
        " Expected an earlier one, or a longer run with trainer.epochs."
    )
