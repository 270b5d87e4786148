"""Means and deviations over seeds, and differences between groups of runs that share seeds."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainer.run.results import format_value


@dataclass(frozen=True)
class Spread:
    """Hold the mean of some values.

    Attributes:
        mean: their mean; None where there is none.
        deviation: their standard deviation (divided by n - 1); None for fewer than two.
        count: how many there are.
        of: how many there could be.
    """

    mean: float | None
    deviation: float | None
    count: int
    of: int

    def __str__(self) -> str:
        """Return it as a cell, such as "0.9806 ± 0.0048"; "(2 of 3)" behind it where values are missing."""
        if self.mean is None:
            return "-"
        missing = f" ({self.count} of {self.of})" if self.count < self.of else ""
        return with_deviation(format_value(self.mean), self.deviation) + missing


def with_deviation(text: str, deviation: float | None) -> str:
    """Return a mean's text with its deviation, where there is one.

    Args:
        text: of the mean.
        deviation: or None.
    """
    return text if deviation is None else f"{text} ± {format_value(deviation)}"


def spread(values: Sequence[float | None]) -> Spread:
    """Return mean and standard deviation.

    Args:
        values: one for each run; None where it was not measured.
    """
    known = [value for value in values if value is not None]
    return Spread(
        statistics.fmean(known) if known else None,
        statistics.stdev(known) if len(known) > 1 else None,
        len(known),
        len(values),
    )


@dataclass(frozen=True)
class Difference:
    """Hold the differences to a reference, seed by seed.

    Attributes:
        spread: of the differences: other less reference.
        higher: seeds at which the other is higher.
        lower: seeds at which it is lower.
    """

    spread: Spread
    higher: int
    lower: int

    def describe(self, direction: str | None) -> str:
        """Return it as a cell, such as "+0.0056 ± 0.0028, better in 2 of 3".

        Args:
            direction: "max" or "min": which values are better; None where nobody knows.
        """
        if self.spread.mean is None:
            return "-"
        sign = "+" if self.spread.mean > 0 else ""
        word, count = ("better", self.lower) if direction == "min" else ("better", self.higher)
        if direction is None:
            word, count = "higher", self.higher
        equal = self.spread.count - self.higher - self.lower
        text = f"{with_deviation(f'{sign}{format_value(self.spread.mean)}', self.spread.deviation)}, "
        return text + f"{word} in {count} of {self.spread.count}" + (f", equal in {equal}" if equal else "")


def difference(reference: Mapping[int, float | None], other: Mapping[int, float | None]) -> Difference:
    """Return how another group differs from a reference at the seeds that both have.

    Args:
        reference: values by seed.
        other: values by seed.
    """
    pairs = [(other[seed], value) for seed, value in reference.items() if seed in other]
    differences = [ours - theirs for ours, theirs in pairs if ours is not None and theirs is not None]
    return Difference(spread(differences), sum(each > 0 for each in differences), sum(each < 0 for each in differences))
