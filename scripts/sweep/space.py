"""The space of a search: which overrides it sets, and to what."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.types import IntervalSweep, Override, RangeSweep

from hookline.trainer.config.command import Command, expand_sweep, parse_overrides
from hookline.trainer.config.compose import open_composer
from hookline.trainer.errors import UserError

LOG = "log"
DIGITS = 4
"""Digits of a suggested number: enough to tell trials apart, few enough to read."""


@dataclass(frozen=True)
class Dimension:
    """Hold one override that a search sets."""

    key: str  # such as "optimizer.learning_rate"
    choices: tuple[str, ...] = ()  # the values as text; empty for an interval
    low: float = 0.0  # of an interval
    high: float = 0.0  # of an interval, which it may reach
    log: bool = False  # whether ratios count in an interval, not differences
    whole: bool = False  # whether an interval holds whole numbers only

    def ends(self) -> list[str]:
        """Return overrides that must all be right: every choice, or both ends of the interval."""
        values = self.choices or tuple(self.text(value) for value in (self.low, self.high))
        return [f"{self.key}={value}" for value in values]

    def text(self, value: Any) -> str:
        """Return a value as written on the command line."""
        if isinstance(value, str):
            return value
        if self.whole:
            return str(int(value))
        return repr(min(max(float(f"{value:.{DIGITS}g}"), self.low), self.high))

    def rounded(self, value: Any) -> Any:
        """Return a value as its text says it."""
        return value if self.choices or self.whole else float(self.text(value))


def read_space(command: Command, texts: Sequence[str]) -> tuple[list[str], list[Dimension]]:
    """Return the overrides that every trial has, and the dimensions of the space."""
    with open_composer(command, overrides=texts) as composer:
        overrides = parse_overrides(texts, composer.loader)
    fixed = [str(each.input_line) for each in overrides if not each.is_sweep_override()]
    space = [_dimension(each) for each in overrides if each.is_sweep_override()]
    if not space:
        raise UserError(
            "--trials received, but no override says what to search. Expected such as "
            "'optimizer.learning_rate=tag(log, interval(1e-4, 1e-2))' or model.activation=tanh,relu."
        )
    return fixed, space


def _dimension(override: Override) -> Dimension:
    key, value = override.get_key_element(), override.value()
    if not isinstance(value, IntervalSweep):
        if isinstance(value, RangeSweep) and value.step == 1:
            start, stop = value.start or 0, value.stop or 0
            if isinstance(start, int) and isinstance(stop, int) and start < stop:
                return Dimension(key, low=start, high=stop - 1, whole=True)
        return Dimension(key, tuple(each.partition("=")[2] for (each,) in expand_sweep([override], sweep=True)))
    low, high = value.start, value.end
    if low is None or high is None or not -math.inf < low < high < math.inf:
        raise UserError(
            f"'{override.input_line}' is not an interval. Expected two finite numbers, the smaller one first."
        )
    log, others = LOG in value.tags, sorted(value.tags - {LOG})
    if others:
        raise UserError(f"'{override.input_line}' has the tag '{others[0]}'. Expected no tag but log.")
    if log and low <= 0:
        raise UserError(f"'{override.input_line}' begins at {low:g}. Expected a number above 0 with the tag log.")
    return Dimension(key, low=low, high=high, log=log, whole=isinstance(low, int) and isinstance(high, int))
