"""The targets of the results table: which runs, what is measured, and what it is compared with."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from hookline.trainer.errors import UserError

FILE = Path(__file__).parent / "targets.yaml"
IMAGES = Path(__file__).parent / "targets_images.yaml"
"""The rest of ours."""
DATA = ("mnist", "cifar10", "clothing")
"""Data that the user gives the place of."""
PLACEHOLDER = re.compile(r"\{(\w+)\}")
"""In an override: the place of data, or another variant; a mapping such as {dense_1: 0.9} is none."""
EXPORT_VALUES = ("bytes", "file", "gzip", "accuracy")


@dataclass(frozen=True)
class Unit:
    """Hold how a value is shown."""

    scale: float  # that the value is multiplied by
    complement: bool  # whether one less the value is meant
    text: str  # behind the number
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
    """Hold one way to train, made with every seed."""

    target: str  # that owns the runs
    name: str  # of the variant in that target
    overrides: tuple[str, ...] = ()  # of train.py, with placeholders, without a seed; empty if another target owns it

    @property
    def placeholders(self) -> tuple[str, ...]:
        """Return the names in braces."""
        return tuple(name for text in self.overrides for name in PLACEHOLDER.findall(text))


@dataclass(frozen=True)
class Export:
    """Hold an exported file that is measured, too."""

    run: str  # variant that is exported
    options: Sequence[str]  # of scripts/export.py
    ending: str  # of the file

    @property
    def name(self) -> str:
        """Return a name that differs for other options, such as "format-sparse_codebook-5"."""
        return "_".join(re.sub(r"[^\w.]+", "-", text) for text in self.options)


@dataclass(frozen=True)
class Measure:
    """Hold what is read off a run or an export; one of `metric`, `summary` and `value` is set."""

    name: str
    unit: Unit
    run: str = ""  # variant, or empty
    export: str = ""  # key of an export, or empty
    metric: str = ""  # of the split
    split: str = "test"
    summary: str = ""  # path in summary.json, joined by dots
    value: str = ""  # of the export


@dataclass(frozen=True)
class Goal:
    """Hold what a measure is compared with."""

    measure: str
    at_least: bool  # whether the measure shall be at least the figure; else at most
    figure: float | str  # a number, or the name of another measure
    source: str  # of the figure


@dataclass(frozen=True)
class Target:
    """Hold a row of the table before it is measured; the file says what each entry is."""

    name: str
    title: str
    recipe: str
    data: str
    seeds: Sequence[int]
    runs: Mapping[str, Variant]
    measures: Mapping[str, Measure]
    needs: Sequence[str] = ()
    exports: Mapping[str, Export] = field(default_factory=dict)
    goals: Sequence[Goal] = ()
    points: Mapping[str, Sequence[str]] = field(default_factory=dict)  # by label: measures of accuracy and of bytes
    size: bool = True


def read_targets(path: Path = FILE) -> dict[str, Target]:
    """Return the targets of a file, in its order; ours are in two."""
    entries: dict[str, Any] = {}
    for file in (path, IMAGES) if path == FILE else (path,):
        entries |= {name: entry for name, entry in _content(file).items() if not str(name).startswith("_")}
    targets: dict[str, Target] = {}
    name: Any = ""
    try:
        for name in entries:
            targets[name] = _target(name, entries[name])
        for name in entries:
            _check(name, targets)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"targets={path} has a mistake in '{name}': {type(error).__name__}: {error}. Expected the form at the top "
            f"of {FILE.name}."
        ) from error
    return targets


def _content(path: Path) -> dict[Any, Any]:
    """Return what a file holds; entries whose names begin with an underscore are shared by others of the file."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = getattr(error, "strerror", None) or "it is not YAML"
        raise UserError(f"targets={path} cannot be read: {reason}. Expected a file as {FILE.name} is.") from error
    if not isinstance(content, dict):
        raise UserError(f"targets={path} is not a mapping. Expected a file as {FILE.name} is.")
    return content


def _target(name: str, entry: Mapping[str, Any]) -> Target:
    parts = {
        "runs": {key: _variant(name, key, value) for key, value in entry["runs"].items()},
        "exports": {key: Export(**value) for key, value in entry.get("exports", {}).items()},
        "measures": {key: _measure(key, **value) for key, value in entry["measures"].items()},
        "goals": [_goal(**value) for value in entry.get("goals", ())],
    }
    return Target(name=name, **{**entry, **parts})


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
        raise TypeError("an override is not text")
    return found


def _measure(name: str, decimals: int | None = None, **value: Any) -> Measure:
    unit = UNITS[value.pop("as")]
    measure = Measure(name, unit if decimals is None else replace(unit, decimals=decimals), **value)
    if sum(map(bool, (measure.metric, measure.summary, measure.value))) != 1 or bool(measure.run) == bool(
        measure.export
    ):
        raise ValueError(f"the measure '{name}' needs run with metric or summary, or export with value")
    return measure


def _goal(measure: str, source: str = "", **relation: Any) -> Goal:
    ((word, figure),) = relation.items()
    at_least = {"at_least": True, "at_most": False}[word]
    return Goal(measure, at_least, figure, source or (f"our {figure}" if isinstance(figure, str) else ""))


def _check(name: str, targets: Mapping[str, Target]) -> None:
    """Refuse a target that refers to what does not exist."""
    target = targets[name]
    for variant in target.runs.values():
        if variant.target not in targets or variant.name not in targets[variant.target].runs:
            raise ValueError(f"there is no variant '{variant.name}' of '{variant.target}'")
        if variant.target != name and not targets[variant.target].runs[variant.name].overrides:
            raise ValueError(f"'{variant.target}' does not own its variant '{variant.name}'")
        for each in variant.placeholders:
            if each not in (*target.needs, *target.runs):
                raise ValueError(f"{{{each}}} is neither data that it needs nor a variant")
    named = [("needs", DATA, target.needs), ("run", target.runs, [each.run for each in target.exports.values()])]
    measures = target.measures.values()
    named += [("run", target.runs, [each.run for each in measures if each.run])]
    named += [("export", target.exports, [each.export for each in measures if each.export])]
    named += [("value", EXPORT_VALUES, [each.value for each in measures if each.export])]
    named += [("measure", target.measures, [each.measure for each in target.goals])]
    named += [("point", (*target.measures, "size"), [each for pair in target.points.values() for each in pair])]
    named += [("figure", target.measures, [each.figure for each in target.goals if isinstance(each.figure, str)])]
    for what, known, given in named:
        for each in given:
            if each not in known:
                raise ValueError(f"{what}: '{each}' does not exist")
    if not target.seeds or not target.runs or not target.measures:
        raise ValueError("no seeds, runs or measures")
