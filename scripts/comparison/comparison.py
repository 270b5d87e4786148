"""How runs differ, and the settings that distinguish them: the fewest columns, their names and cells."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hookline.hooks.monitors.console import NONE
from hookline.scripts.comparison.runs import Metric, StoredRun, choose_metrics, monitor_of
from hookline.trainer.config import stored
from hookline.trainer.config.overrides import show
from hookline.trainer.config.schema import NAMED, TARGET, lookup
from hookline.trainer.config.stored import MISSING, Settings
from hookline.trainer.errors import printable, unknown_name
from hookline.trainer.run.results import format_value

RECIPE = "recipe"


def without_parts(keys: Sequence[str], settings: Settings) -> list[str]:
    """Return keys without those that differ only because some configs lack the hook that they belong to."""
    parts = {key for key in keys if key.count(".") == 1 and key.partition(".")[0] in NAMED}
    present = {key: [value for value in settings[key] if value is not MISSING] for key in keys}
    return [key for key in keys if not any(key.startswith(f"{part}.") for part in parts) or stored.varies(present[key])]


def choose_columns(settings: Settings, overrides: Sequence[Sequence[str]]) -> list[str]:
    """Return the keys that distinguish configs: those that differ and that users set, and as few others as possible."""
    keys = stored.differing(settings)
    given = list(dict.fromkeys(stored.overridden_key(text) for texts in overrides for text in texts))
    chosen = [key for name in sorted(given, key=lambda name: name != RECIPE) for key in keys if _is_set_by(key, name)]
    chosen = list(dict.fromkeys(chosen))
    for key in keys:
        if _parts(settings, [*chosen, key]) > _parts(settings, chosen):
            chosen.append(key)
    return chosen


def _parts(settings: Settings, keys: Sequence[str]) -> int:
    """Return into how many groups the values of keys divide the configs."""
    return len(set(zip(*([repr(value) for value in settings[key]] for key in keys), strict=True))) if keys else 1


def _is_set_by(key: str, given: str) -> bool:
    """Return whether an override affects a setting: the key itself, a part of its value, or a group's choice."""
    parts = given.split(".")
    if given in NAMED:  # +hooks=prune
        return key.startswith(f"{given}.") and key.count(".") == 1
    is_choice = len(parts) == 1 and key == f"{given}.{TARGET}"
    return key == given or is_choice or (len(parts) > 2 and key.startswith(f"{given}."))


def shorten_keys(keys: Sequence[str], taken: Sequence[str] = ()) -> list[str]:
    """Return the shortest unique suffixes of keys that are not taken, such as "learning_rate"."""
    whole, found = [key.removesuffix(f".{TARGET}") for key in keys], []
    for key in whole:
        parts, others = key.split("."), [f".{other}" for other in whole if other != key]
        ends = [".".join(parts[start:]) for start in range(len(parts) - 1, 0, -1)]
        free = (end for end in ends if end not in taken and not any(other.endswith(f".{end}") for other in others))
        found.append(next(free, key))
    return found


def show_setting(key: str, value: Any) -> str:
    """Return a value as a cell: a dash if it is missing, "on" for a hook that is present, the end of a target."""
    if value is MISSING:
        return NONE
    if key.endswith(TARGET):
        return str(value).rpartition(".")[2]
    if value is True and key.count(".") == 1 and key.partition(".")[0] in NAMED:
        return "on"
    return show(value)


class Spread:
    """Mean and standard deviation (divided by n - 1) of values, some of which may be missing."""

    def __init__(self, values: Sequence[float | None]) -> None:
        """Compute them: the mean is None without a value, the deviation with fewer than two."""
        known = [value for value in values if value is not None]
        self.count, self.of = len(known), len(values)
        self.mean = statistics.fmean(known) if known else None
        self.deviation = statistics.stdev(known) if len(known) > 1 else None

    def __str__(self) -> str:
        """Return it as a cell, such as "0.9806 ± 0.0048", followed by "(2 of 3)" if values are missing."""
        if self.mean is None:
            return NONE
        deviation = "" if self.deviation is None else f" ± {format_value(self.deviation)}"
        missing = f" ({self.count} of {self.of})" if self.count < self.of else ""
        return f"{format_value(self.mean)}{deviation}{missing}"


def difference(reference: Mapping[int, float | None], other: Mapping[int, float | None], direction: str | None) -> str:
    """Return how a group differs from another at common seeds, such as "+0.0056 ± 0.0028, better in 2 of 3"."""
    pairs = [(other[seed], value) for seed, value in reference.items() if seed in other]
    found = [ours - theirs for ours, theirs in pairs if ours is not None and theirs is not None]
    if not found:
        return NONE
    better = sum(each < 0 if direction == "min" else each > 0 for each in found)
    equal = f", equal in {found.count(0.0)}" if 0.0 in found else ""
    word = "higher" if direction is None else "better"
    return f"{'+' if statistics.fmean(found) > 0 else ''}{Spread(found)}, {word} in {better} of {len(found)}{equal}"


VALIDATION, SIZE, PARAMETERS, SECONDS, COUNT = "validation", "size", "parameters", "seconds", "n"
MEASURED = (VALIDATION, SIZE, PARAMETERS, SECONDS)


@dataclass(frozen=True)
class Group:
    """Runs that differ only in the seed."""

    settings: Mapping[str, Any]  # what distinguishes the group from others, by dotted key
    runs: tuple[StoredRun, ...]  # the complete ones, one per seed, by seed
    unfinished: int = 0  # how many other runs of the group did not finish

    def spread(self, metric: Metric) -> Spread:
        return Spread([metric.of(run) for run in self.runs])

    def by_seed(self, metric: Metric) -> dict[int, float | None]:
        return {run.seed: metric.of(run) for run in self.runs if run.seed is not None}

    def mean(self, place: str) -> float:
        """Return the mean of a number that every summary has, such as "bytes.deployed"."""
        return statistics.fmean(float(lookup(run.summary, place)) for run in self.runs)

    @property
    def monitor(self) -> Metric:
        """Return the metric by which the runs selected their best step."""
        name, mode = monitor_of(self.runs[0])
        return Metric(VALIDATION, name, mode)

    @property
    def seeds(self) -> list[int | None]:
        return [run.seed for run in self.runs]


@dataclass
class Comparison:
    """Groups of runs, compared side by side."""

    groups: list[Group]  # those with a complete run, in order
    columns: list[str]  # keys of the settings that are shown
    # keys of all settings in which the groups differ; for a hook that only some have, only the key of the hook
    differing: list[str]
    metrics: list[Metric]  # what is compared
    unfinished: list[StoredRun]  # runs that did not finish
    # runs left out because a later one has the same settings and seed
    repeated: list[StoredRun] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)  # why others could not be read

    @property
    def names(self) -> list[str]:
        """Return the columns' names, as short as they can be."""
        return shorten_keys(self.columns, taken=(COUNT, *MEASURED))

    @property
    def monitor(self) -> Metric | None:
        """Return the metric by which all groups selected their best step; None if they differ."""
        monitors = {group.monitor for group in self.groups}
        return monitors.pop() if len(monitors) == 1 else None

    @property
    def best(self) -> Group | None:
        """Return the group that is best on the validation split; None if the groups monitor different metrics."""
        if (metric := self.monitor) is None:
            return None
        known = [group for group in self.groups if group.spread(metric).mean is not None]
        return min(known, key=lambda group: _ordinal(group.spread(metric).mean, metric.direction), default=None)

    def label(self, group: Group, separator: str = " ") -> str:
        """Return a group's settings as text, such as "recipe=bnn learning_rate=0.001"; "all" for a lone group."""
        cells = zip(self.names, self.cells(group), strict=True)
        return separator.join(f"{name}={cell}" for name, cell in cells if cell != NONE) or "all"

    def cells(self, group: Group) -> list[str]:
        """Return a group's settings as texts, one for each column."""
        return [printable(show_setting(key, group.settings[key])) for key in self.columns]


def compare(runs: Sequence[StoredRun], metrics: str | None = None) -> Comparison:
    """Group runs that differ only in the seed; the best group comes first, unless groups monitor different metrics."""
    given = {stored.overridden_key(text) for run in runs for text in run.overrides}
    ignored = {*stored.IGNORED, *({"trainer.threads"} - given)}  # a sweep sets it; it changes only the last bits

    def identity(run: StoredRun) -> str:
        """Return a text that is equal for runs that differ only in ignored settings."""
        settings = {key: values[0] for key, values in stored.spread_settings([run.config], ignored).items()}
        return json.dumps([run.recipe, settings], sort_keys=True, default=str)

    complete, unfinished = [[run for run in runs if run.is_complete is whole] for whole in (True, False)]
    identities = {id(run): identity(run) for run in runs}
    latest = {(identities[id(run)], run.seed): id(run) for run in sorted(complete, key=lambda run: run.written)}
    kept = [run for run in complete if id(run) in latest.values()]
    repeated = [run for run in complete if id(run) not in latest.values()]
    members: dict[str, list[StoredRun]] = {}
    for run in kept:
        members.setdefault(identities[id(run)], []).append(run)
    settings = stored.spread_settings([group[0].config for group in members.values()], ignored)
    settings = {RECIPE: [group[0].recipe for group in members.values()], **settings}
    keys = stored.differing(settings)
    lost = Counter(identities[id(run)] for run in unfinished if run.config)
    groups = [
        Group(
            {key: settings[key][index] for key in keys},
            tuple(sorted(group, key=lambda run: -1 if run.seed is None else run.seed)),
            lost[each],
        )
        for index, (each, group) in enumerate(members.items())
    ]
    columns = choose_columns(settings, [run.overrides for run in kept])
    shown = without_parts(keys, settings)
    result = Comparison(groups, columns, shown, choose_metrics(metrics, kept), unfinished, repeated)
    return sort(result, VALIDATION) if result.monitor is not None else result


def sort(comparison: Comparison, name: str) -> Comparison:
    """Sort the groups in place: better metrics first, sizes, times and settings ascending, other values descending."""
    comparison.groups.sort(key=_sort_key(comparison, name))
    return comparison


def _sort_key(comparison: Comparison, name: str) -> Callable[[Group], Any]:
    places = {SIZE: "bytes.deployed", PARAMETERS: "params.total", SECONDS: "seconds"}
    if name == VALIDATION:
        return lambda group: _ordinal(group.spread(group.monitor).mean, group.monitor.direction)
    if name in places:
        return lambda group: group.mean(places[name])
    for metric in comparison.metrics:
        if name in (metric.label, metric.label.replace(" ", "/"), f"{metric.split}/{metric.name}"):
            return lambda group: _ordinal(group.spread(metric).mean, metric.direction)
    for key, short in zip(comparison.columns, comparison.names, strict=True):
        if name in (key, short):
            return lambda group: _setting_order(group.settings[key])
    known = [*MEASURED, *(metric.label for metric in comparison.metrics), *comparison.names]
    raise unknown_name("column", name, known)


def _ordinal(value: float | None, direction: str | None) -> tuple[bool, float]:
    """Return a sort key that puts better values first, and missing ones last."""
    if value is None:
        return True, 0.0
    return False, value if direction == "min" else -value


def _setting_order(value: Any) -> tuple[bool, float, str]:
    is_number = isinstance(value, int | float)
    return not is_number, float(value) if is_number else 0.0, str(value)
