"""The options of pruning: what is pruned, when, and how far. Plain numbers, checked before anything is traced."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hookline.hooks.options import epoch_start
from hookline.trainer.errors import UserError, check_choice, check_integer, check_number

SIZED = {"n_m": "{n_m: [2, 4]}", "block": "{block: [4, 4]}"}
STRUCTURES = ("unstructured", "channel", *SIZED)

Sparsity = float | dict[str, float]


@dataclass(frozen=True)
class Structure:
    """Define which entries are kept or pruned together."""

    name: str  # one of STRUCTURES
    sizes: tuple[int, ...] = ()  # (n, m) of n_m: keep n of every m; (rows, columns) of a block; empty otherwise

    @property
    def own_sparsity(self) -> float | None:
        """Return the sparsity that the structure itself fixes, 1 - n / m, or None."""
        return 1.0 - self.sizes[0] / self.sizes[1] if self.name == "n_m" else None

    @property
    def config(self) -> str | dict[str, list[int]]:
        """Return the structure as it is written in a config."""
        return {self.name: list(self.sizes)} if self.sizes else self.name


def parse_structure(value: str | Mapping[str, Sequence[int]]) -> Structure:
    """Return the structure given in a config: a name, or a mapping such as {"n_m": [2, 4]}."""
    given = {value: ()} if isinstance(value, str) else value
    name = check_choice("structure", next(iter(given), ""), STRUCTURES)
    sizes = tuple(given[name])
    wanted = 2 if name in SIZED else 0
    if len(given) != 1 or len(sizes) != wanted or min(sizes, default=1) < 1 or (name == "n_m" and sizes[0] >= sizes[1]):
        raise UserError(f"structure={value}: expected unstructured, channel, {' or '.join(SIZED.values())}, n < m.")
    return Structure(name, sizes)


def check_layer_sparsity(name: str, value: Any) -> Sparsity:
    """Return a checked sparsity, or sparsities by layer pattern."""
    if not isinstance(value, Mapping):
        return check_number(name, value, 0, 1)
    return {str(pattern): check_number(f"{name} of {pattern}", each, 0, 1) for pattern, each in value.items()}


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
"""Options that only some schedules use, by name: the default, and these schedules."""
DEFAULT_SPARSITY = 0.5


def check_used(schedule: str, given: Mapping[str, Any]) -> None:
    """Refuse an option that the schedule does not use."""
    for option, (default, users) in USERS.items():
        if schedule not in users and given[option] != default:
            raise UserError(
                f"{option}={given[option]} has no effect with schedule={schedule}. "
                f"Expected {option}={'null' if default is None else default}, or schedule={' or '.join(users)}."
            )


def update_steps(begin: int, end: int, frequency: int, growth: float = 1.0) -> list[int]:
    """Return the steps at which masks change: `begin`, then one after each interval, and always `end`."""
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
    """Return how many of `units` are kept: all but round(sparsity * units), and at least `minimum`."""
    return max(min(minimum, units), units - round(sparsity * units))


@dataclass
class Settings:
    """Hold the checked options of `Prune`, under their names."""

    layers: str | Sequence[str]
    schedule: str
    final_sparsity: Any  # once checked, a Sparsity: of the final masks, for all layers or by pattern
    initial_sparsity: float
    begin_epoch: float
    end_epoch: float | None  # None for halfway from `begin_epoch` to the end of training
    frequency: int
    frequency_growth: float
    power: float
    stages: Any  # once checked, a list of Sparsity, empty unless the schedule is iterative
    stage_epochs: float | None
    hysteresis: float
    scope: str
    structure: Any  # once checked, a Structure
    criterion: str

    def __post_init__(self) -> None:
        check_choice("schedule", self.schedule, ("one_shot", "constant", "polynomial", "iterative", "splicing"))
        check_choice("scope", self.scope, ("per_layer", "global"))
        check_choice("criterion", self.criterion, ("magnitude", "l2"))
        check_used(self.schedule, vars(self))
        if self.schedule == "iterative":
            if not self.stages:
                raise UserError("schedule=iterative needs stages=..., such as [0.5,0.8,0.9].")
            check_number("stage_epochs", self.stage_epochs, minimum=0.0, above_minimum=True)
        self.structure = parse_structure(self.structure)
        self.stages = [check_layer_sparsity("stages", stage) for stage in self.stages or ()]
        self.final_sparsity = _final_sparsity(self.final_sparsity, self.stages, self.structure)
        self.initial_sparsity = check_number("initial_sparsity", self.initial_sparsity, 0, 1)
        begin, end = check_number("begin_epoch", self.begin_epoch, 0), self.end_epoch
        if end is not None and check_number("end_epoch", end, 0) < begin:
            raise UserError(f"end_epoch={end} is before begin_epoch={begin}. Expected end_epoch >= begin_epoch.")
        check_integer("frequency", self.frequency)
        check_number("frequency_growth", self.frequency_growth, minimum=1.0)
        check_number("power", self.power, minimum=0.0, above_minimum=True)
        check_number("hysteresis", self.hysteresis, minimum=1.0)
        if self.scope == "global" and self.structure.name == "n_m":
            raise UserError("scope=global has no meaning with n_m: every group keeps its share. Set scope=per_layer.")
        if self.scope == "global" and any(isinstance(each, dict) for each in (self.final_sparsity, *self.stages)):
            raise UserError("scope=global takes one sparsity for all layers. Expected a number, or scope=per_layer.")

    def steps(self, total_steps: int, steps_per_epoch: float) -> list[int]:
        """Return the steps at which masks change, in ascending order."""
        count = len(self.stages) or 1
        epochs = [self.begin_epoch + stage * (self.stage_epochs or 0.0) for stage in range(count)]
        begin, *_ = steps = [epoch_start(epoch, steps_per_epoch) for epoch in epochs]
        if len(set(steps)) < count:
            raise UserError(f"stage_epochs={self.stage_epochs} is less than a step. Expected a longer stage.")
        end = steps[-1]
        what, epoch = f"the last of {count} stages, epoch" if self.stages else "begin_epoch", epochs[-1]
        if end < total_steps and self.schedule in UPDATED:
            end = begin + (total_steps - 1 - begin) // 2
            if self.end_epoch is not None:
                what, epoch = "end_epoch", self.end_epoch
                end = max(begin, epoch_start(epoch, steps_per_epoch) - 1)
        if end >= total_steps:
            raise UserError(
                f"{what}={epoch:g} is after the end of the run, epoch {total_steps / steps_per_epoch:.4g}. Expected an "
                "earlier one, or a longer run with trainer.epochs."
            )
        return update_steps(begin, end, self.frequency, self.frequency_growth) if self.schedule in UPDATED else steps

    def sparsities(self, steps: Sequence[int], final: float) -> list[float]:
        """Return the sparsity after each update of a schedule without stages."""
        initial = self.initial_sparsity if self.schedule in RISING else final
        curve = {"begin": steps[0], "end": steps[-1]}
        return [polynomial_sparsity(step, **curve, initial=initial, final=final, power=self.power) for step in steps]


def _final_sparsity(given: Any, stages: Sequence[Sparsity], structure: Structure) -> Sparsity:
    stated = None if given == "auto" else check_layer_sparsity("final_sparsity", given)
    if stated is not None and stages and stated != stages[-1]:
        raise UserError(f"final_sparsity={given} is not the last of stages, {stages[-1]}. Expected the same, or auto.")
    chosen = stages[-1] if stages else stated
    own = structure.own_sparsity
    if own is None:
        return DEFAULT_SPARSITY if chosen is None else chosen
    values = [] if chosen is None else list(chosen.values()) if isinstance(chosen, dict) else [chosen]
    if any(not math.isclose(value, own, abs_tol=1e-6) for value in values):
        raise UserError(f"final_sparsity={chosen} contradicts structure={structure.config}. Expected {own:g}, or auto.")
    return own
