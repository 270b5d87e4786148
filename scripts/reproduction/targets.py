"""The targets of the results table: which runs, what is measured, and what it is compared with."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from hookline.trainer.errors import UserError

FILE = Path(__file__).parent / "targets.yaml"
DATA = ("mnist", "clothing")
"""Data that the user gives the place of."""
PLACEHOLDER = re.compile(r"\{(\w+)\}")
"""In an override: the place of data, or another variant; a mapping such as {dense_1: 0.9} is none."""
EXPORT_VALUES = ("bytes", "accuracy")


@dataclass(frozen=True)
class Unit:
    """Hold how a value is shown.

    Attributes:
        scale: that the value is multiplied by.
        complement: whether one less the value is meant.
        text: behind the number.
        decimals: shown.
    """

    scale: float
    complement: bool
    text: str
    decimals: int

    def of(self, value: float) -> float:
        """Return a value as it is shown, but for rounding."""
        return round(self.scale * (1 - value if self.complement else value), 6)


UNITS = {
    "percent": Unit(100, complement=False, text="%", decimals=1),
    "error": Unit(100, complement=True, text="%", decimals=2),
    "number": Unit(1, complement=False, text="", decimals=3),
    "KB": Unit(1 / 1000, complement=False, text="KB", decimals=1),
    "KiB": Unit(1 / 1024, complement=False, text="KiB", decimals=2),
}


@dataclass(frozen=True)
class Variant:
    """Hold one way to train, made with every seed.

    Attributes:
        target: that owns the runs.
        name: of the variant in that target.
        overrides: of train.py, with placeholders, without a seed; empty if another target owns it.
    """

    target: str
    name: str
    overrides: tuple[str, ...] = ()

    @property
    def placeholders(self) -> tuple[str, ...]:
        """Return the names in braces."""
        return tuple(name for text in self.overrides for name in PLACEHOLDER.findall(text))


@dataclass(frozen=True)
class Export:
    """Hold an exported file that is measured, too.

    Attributes:
        run: variant that is exported.
        options: of scripts/export.py.
        ending: of the file.
    """

    run: str
    options: tuple[str, ...]
    ending: str

    @property
    def name(self) -> str:
        """Return a name that differs for other options, such as "format-sparse_codebook-5"."""
        return "_".join(re.sub(r"[^\w.]+", "-", text) for text in self.options)


@dataclass(frozen=True)
class Measure:
    """Hold what is read off a run or an export; one of `metric`, `summary` and `value` is set.

    Attributes:
        name: as the table shows it.
        unit: how it is shown.
        run: variant, or empty.
        export: key of an export, or empty.
        metric: of the split.
        split: train, validation or test.
        summary: path in summary.json, joined by dots.
        value: of the export.
    """

    name: str
    unit: Unit
    run: str = ""
    export: str = ""
    metric: str = ""
    split: str = "test"
    summary: str = ""
    value: str = ""


@dataclass(frozen=True)
class Goal:
    """Hold what a measure is compared with.

    Attributes:
        measure: its name.
        at_least: whether the measure shall be at least the figure; else at most.
        figure: a number, or the name of another measure.
        source: of the figure.
    """

    measure: str
    at_least: bool
    figure: float | str
    source: str


@dataclass(frozen=True)
class Target:
    """Hold a row of the table before it is measured.

    Attributes:
        name: key in the file.
        title: one phrase.
        recipe: name of the recipe.
        data: as the table shows it.
        needs: data that the user gives the place of.
        seeds: of every variant.
        runs: variants by name; the first gives size and time.
        exports: by name.
        measures: by name; the first is the figure of the row.
        goals: what to reach.
        size: whether the size of what is shipped is shown.
    """

    name: str
    title: str
    recipe: str
    data: str
    needs: tuple[str, ...]
    seeds: tuple[int, ...]
    runs: Mapping[str, Variant]
    exports: Mapping[str, Export]
    measures: Mapping[str, Measure]
    goals: tuple[Goal, ...]
    size: bool


def read_targets(path: Path = FILE) -> dict[str, Target]:
    """Return the targets of a file, in its order."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = getattr(error, "strerror", None) or "it is no YAML"
        raise UserError(f"targets={path} cannot be read: {reason}. Expected a file as {FILE.name} is.") from error
    if not isinstance(content, dict):
        raise UserError(f"targets={path} is no mapping. Expected a file as {FILE.name} is.")
    targets = {}
    for name, entry in content.items():
        if str(name).startswith("_"):  # shared parts
            continue
        try:
            targets[name] = _target(name, entry)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise _wrong(path, name, f"{type(error).__name__}: {error}") from error
    for target in targets.values():
        if fault := _fault(target, targets):
            raise _wrong(path, target.name, fault)
    return targets


def _wrong(path: Path, name: object, fault: str) -> UserError:
    return UserError(f"targets={path} has a mistake in '{name}': {fault}. Expected the form at the top of {FILE.name}.")


def _target(name: str, entry: Mapping[str, Any]) -> Target:
    known = ("title", "recipe", "data", "needs", "seeds", "size", "runs", "exports", "measures", "goals")
    if unknown := set(entry) - set(known):
        raise ValueError(f"unknown {', '.join(sorted(unknown))}")
    exports = {
        key: Export(value["run"], tuple(value["options"]), value["ending"])
        for key, value in entry.get("exports", {}).items()
    }
    return Target(
        name=name,
        title=entry["title"],
        recipe=entry["recipe"],
        data=entry["data"],
        needs=tuple(entry.get("needs", ())),
        seeds=tuple(entry["seeds"]),
        runs={key: _variant(name, key, value) for key, value in entry["runs"].items()},
        exports=exports,
        measures={key: _measure(key, dict(value)) for key, value in entry["measures"].items()},
        goals=tuple(_goal(value) for value in entry.get("goals", ())),
        size=entry.get("size", True),
    )


def _variant(target: str, name: str, value: Any) -> Variant:
    if isinstance(value, Mapping):
        return Variant(value["of"], value["variant"])
    return Variant(target, name, tuple(_flat(value)))


def _flat(values: Sequence[Any]) -> list[str]:
    """Return overrides as one flat list; YAML aliases nest one list in another."""
    found: list[str] = []
    for value in values:
        found += _flat(value) if isinstance(value, list) else [value]
    if not all(isinstance(text, str) for text in found):
        raise TypeError("an override is no text")
    return found


def _measure(name: str, value: dict[str, Any]) -> Measure:
    unit = UNITS[value.pop("as")]
    if "decimals" in value:
        unit = Unit(unit.scale, complement=unit.complement, text=unit.text, decimals=value.pop("decimals"))
    measure = Measure(name, unit, **value)
    if sum(map(bool, (measure.metric, measure.summary, measure.value))) != 1 or bool(measure.run) == bool(
        measure.export
    ):
        raise ValueError(f"the measure '{name}' needs run with metric or summary, or export with value")
    return measure


def _goal(value: Mapping[str, Any]) -> Goal:
    (relation,) = {"at_least", "at_most"} & set(value)
    figure = value[relation]
    default = f"our {figure}" if isinstance(figure, str) else ""
    return Goal(value["measure"], relation == "at_least", figure, value.get("source", default))


def _fault(target: Target, targets: Mapping[str, Target]) -> str | None:
    """Return what a target refers to that does not exist."""
    for variant in target.runs.values():
        if variant.target not in targets or variant.name not in targets[variant.target].runs:
            return f"there is no variant '{variant.name}' of '{variant.target}'"
        if variant.target != target.name and not targets[variant.target].runs[variant.name].overrides:
            return f"'{variant.target}' does not own its variant '{variant.name}'"
        for name in variant.placeholders:
            if name not in (*target.needs, *target.runs):
                return f"{{{name}}} is neither data that it needs nor a variant"
            if name in target.runs and set(target.runs[name].placeholders) & set(target.runs):
                return f"'{variant.name}' begins from '{name}', which begins from another run"
    for wrong in set(target.needs) - set(DATA):
        return f"needs {wrong}"
    for export in target.exports.values():
        if export.run not in target.runs:
            return f"an export of '{export.run}', which is no variant"
    for measure in target.measures.values():
        if measure.run and measure.run not in target.runs:
            return f"'{measure.name}' of '{measure.run}', which is no variant"
        if measure.export and (measure.export not in target.exports or measure.value not in EXPORT_VALUES):
            return f"'{measure.name}' of an export or a value that does not exist"
    for goal in target.goals:
        if goal.measure not in target.measures or (isinstance(goal.figure, str) and goal.figure not in target.measures):
            return f"a goal of '{goal.measure}' against '{goal.figure}', one of which is no measure"
    if not target.seeds or not target.runs or not target.measures:
        return "no seeds, runs or measures"
    return None
