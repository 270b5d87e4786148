"""What differs between runs."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hookline.scripts.comparison.runs import Metric, StoredRun, default_metrics, monitor_of
from hookline.trainer.config.settings import (
    RECIPE,
    choose_columns,
    differing,
    ignored_keys,
    shorten_keys,
    show_setting,
    spread_settings,
    without_parts,
)
from hookline.trainer.errors import printable, unknown_name
from hookline.trainer.run.results import format_value


@dataclass(frozen=True)
class Spread:
    """Hold the mean of some values.

    Attributes:
        mean: their mean; None if there is none.
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
    """Return a mean's text with its deviation, where there is one."""
    return text if deviation is None else f"{text} ± {format_value(deviation)}"


def spread(values: Sequence[float | None]) -> Spread:
    """Return mean and standard deviation."""
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
        """Return it as a cell, such as "+0.0056 ± 0.0028, better in 2 of 3"."""
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
    """Return how another group differs from a reference at the seeds that both have."""
    pairs = [(other[seed], value) for seed, value in reference.items() if seed in other]
    differences = [ours - theirs for ours, theirs in pairs if ours is not None and theirs is not None]
    return Difference(spread(differences), sum(each > 0 for each in differences), sum(each < 0 for each in differences))


VALIDATION, SIZE, PARAMETERS, SECONDS, COUNT = "validation", "size", "parameters", "seconds", "n"
MEASURED = (VALIDATION, SIZE, PARAMETERS, SECONDS)


@dataclass(frozen=True)
class Group:
    """Hold runs that differ only in the seed.

    Attributes:
        settings: what distinguishes the group from others, by dotted key.
        runs: the complete ones, one per seed, by seed.
        unfinished: how many others of the group did not come to their end.
    """

    settings: Mapping[str, Any]
    runs: tuple[StoredRun, ...]
    unfinished: int = 0

    def spread(self, metric: Metric) -> Spread:
        """Return mean and deviation of a metric."""
        return spread([metric.of(run) for run in self.runs])

    def by_seed(self, metric: Metric) -> dict[int, float | None]:
        """Return the values of a metric by seed."""
        return {run.seed: metric.of(run) for run in self.runs if run.seed is not None}

    def mean(self, *path: str) -> float:
        """Return the mean of a number that every summary has, such as ("bytes", "deployed")."""
        return _mean([_at(run.summary, path) for run in self.runs])

    @property
    def monitor(self) -> Metric:
        """Return the metric by which the runs decided their best step."""
        name, mode = monitor_of(self.runs[0])
        return Metric(VALIDATION, name, mode)

    @property
    def seeds(self) -> list[int | None]:
        """Return the seeds, in order."""
        return [run.seed for run in self.runs]


@dataclass
class Comparison:
    """Hold groups side by side.

    Attributes:
        groups: those with a complete run, in order.
        columns: keys of the settings that are shown.
        differing: keys of all settings in which the groups differ; of a hook that only some have, the hook alone.
        metrics: what is compared.
        unfinished: runs that did not come to their end.
        repeated: runs left out since a later one has the same settings and seed.
        unreadable: why further ones could not be read.
    """

    groups: list[Group]
    columns: list[str]
    differing: list[str]
    metrics: list[Metric]
    unfinished: list[StoredRun]
    repeated: list[StoredRun] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)

    @property
    def names(self) -> list[str]:
        """Return the columns' names, as short as they can be."""
        return shorten_keys(self.columns, taken=(COUNT, *MEASURED))

    @property
    def monitor(self) -> Metric | None:
        """Return the metric by which all groups decided their best step; None if they differ."""
        monitors = {group.monitor for group in self.groups}
        return monitors.pop() if len(monitors) == 1 else None

    @property
    def best(self) -> Group | None:
        """Return the group that is best on the validation split; None if the groups were judged by other metrics."""
        if (metric := self.monitor) is None:
            return None
        known = [group for group in self.groups if group.spread(metric).mean is not None]
        return min(known, key=lambda group: _ordinal(group.spread(metric).mean, metric.direction), default=None)

    def label(self, group: Group) -> str:
        """Return a group's settings as text, such as "recipe=bnn learning_rate=0.001"; "all" of a lone group."""
        cells = zip(self.names, self.cells(group), strict=True)
        return " ".join(f"{name}={cell}" for name, cell in cells) or "all"

    def cells(self, group: Group) -> list[str]:
        """Return a group's settings as texts, one for each column."""
        return [printable(show_setting(key, group.settings[key])) for key in self.columns]


def compare(
    runs: Sequence[StoredRun], choose_metrics: Callable[[Sequence[StoredRun]], list[Metric]] = default_metrics
) -> Comparison:
    """Return runs in groups that differ only in the seed, the best by validation first.

    Groups that were judged by different metrics stay in the order of their runs.
    """
    ignored = ignored_keys(run.overrides for run in runs)
    identities = {id(run): _identity(run, ignored) for run in runs}
    kept, repeated = _latest_of_each_seed([run for run in runs if run.is_complete], identities)
    unfinished = [run for run in runs if not run.is_complete]
    members: dict[str, list[StoredRun]] = {}
    for run in kept:
        members.setdefault(identities[id(run)], []).append(run)
    settings = spread_settings([group[0].config for group in members.values()], ignored)
    settings = {RECIPE: [group[0].recipe for group in members.values()], **settings}
    keys = differing(settings)
    lost = Counter(identities[id(run)] for run in unfinished if run.config)
    groups = [
        Group({key: settings[key][index] for key in keys}, tuple(sorted(group, key=_by_seed)), lost[identity])
        for index, (identity, group) in enumerate(members.items())
    ]
    columns = choose_columns(settings, [run.overrides for run in kept])
    shown = without_parts(keys, settings)
    result = Comparison(groups, columns, shown, choose_metrics(kept), unfinished, repeated)
    return sort(result, VALIDATION) if result.monitor is not None else result


def sort(comparison: Comparison, name: str) -> Comparison:
    """Sort the groups in place: what is better first, sizes and settings upwards, other values downwards."""
    comparison.groups.sort(key=_sort_key(comparison, name))
    return comparison


def _sort_key(comparison: Comparison, name: str) -> Callable[[Group], Any]:
    places = {SIZE: ("bytes", "deployed"), PARAMETERS: ("params", "total"), SECONDS: ("seconds",)}
    if name == VALIDATION:
        return lambda group: _ordinal(group.spread(group.monitor).mean, group.monitor.direction)
    if name in places:
        return lambda group: group.mean(*places[name])
    for metric in comparison.metrics:
        if name in (metric.label, metric.label.replace(" ", "/"), f"{metric.split}/{metric.name}"):
            return lambda group: _ordinal(group.spread(metric).mean, metric.direction)
    for key, short in zip(comparison.columns, comparison.names, strict=True):
        if name in (key, short):
            return lambda group: _setting_order(group.settings[key])
    known = [*MEASURED, *(metric.label for metric in comparison.metrics), *comparison.names]
    raise unknown_name("column", name, known)


def _ordinal(value: float | None, direction: str | None) -> tuple[bool, float]:
    """Return what sorts better values first, and missing ones last."""
    if value is None:
        return True, 0.0
    return False, value if direction == "min" else -value


def _setting_order(value: Any) -> tuple[bool, float, str]:
    is_number = isinstance(value, int | float)
    return not is_number, float(value) if is_number else 0.0, str(value)


def _identity(run: StoredRun, ignored: Collection[str]) -> str:
    """Return a text that runs share which differ only in what is ignored."""
    settings = {key: values[0] for key, values in spread_settings([run.config], ignored).items()}
    return json.dumps([run.recipe, settings], sort_keys=True, default=str)


def _latest_of_each_seed(
    runs: Sequence[StoredRun], identities: Mapping[int, str]
) -> tuple[list[StoredRun], list[StoredRun]]:
    """Return the runs to average, and those that a later one with the same settings and seed replaces."""
    latest: dict[tuple[str, int | None], StoredRun] = {}
    for run in sorted(runs, key=lambda run: run.written):
        latest[identities[id(run)], run.seed] = run
    kept = {id(run) for run in latest.values()}
    return [run for run in runs if id(run) in kept], [run for run in runs if id(run) not in kept]


def _by_seed(run: StoredRun) -> int:
    return -1 if run.seed is None else run.seed


def _at(summary: Any, path: Sequence[str]) -> float:
    for name in path:
        summary = summary[name]
    return float(summary)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
