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
    """How a value is shown."""

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
    """One way to train, made with every seed."""

    target: str  # that owns the runs
    name: str  # of the variant in that target
    overrides: tuple[str, ...] = ()  # of train.py, with placeholders, without a seed; empty if another target owns it

    @property
    def placeholders(self) -> tuple[str, ...]:
        """Return the names in braces."""
        return tuple(name for text in self.overrides for name in PLACEHOLDER.findall(text))


@dataclass(frozen=True)
class Export:
    """An exported file that is measured, too."""

    run: str  # variant that is exported
    options: Sequence[str]  # of scripts/export.py
    ending: str  # of the file

    @property
    def name(self) -> str:
        """Return a name that differs for other options, such as "format-sparse_codebook-5"."""
        return "_".join(re.sub(r"[^\w.]+", "-", text) for text in self.options)


@dataclass(frozen=True)
class Measure:
    """What is read off a run or an export; one of `metric`, `summary` and `value` is set."""

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
    """What a measure is compared with."""

    measure: str
    at_least: bool  # whether the measure shall be at least the figure; else at most
    figure: float | str  # a number, or the name of another measure
    source: str  # of the figure


@dataclass(frozen=True)
class Target:
    """A row of the table before it is measured; the file says what each entry is."""

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
    targets: dict[str, Target] = {}
    name: Any = "the file"
    try:
        for file in (path, IMAGES) if path == FILE else (path,):
            for name, entry in yaml.safe_load(file.read_text(encoding="utf-8")).items():
                if not str(name).startswith("_"):  # shared by others of the file
                    targets[name] = _target(name, entry)
        for name in targets:
            _check(name, targets)
    except (OSError, yaml.YAMLError) as error:
        reason = getattr(error, "strerror", None) or "it is not YAML"
        raise UserError(f"targets={path} cannot be read: {reason}. Expected a file as {FILE.name} is.") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"targets={path} has a mistake in '{name}': {type(error).__name__}: {error}. Expected the form at the top "
            f"of {FILE.name}."
        ) from error
    return targets


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
    return found


def _measure(name: str, decimals: int | None = None, **value: Any) -> Measure:
    unit = UNITS[value.pop("as")]
    return Measure(name, unit if decimals is None else replace(unit, decimals=decimals), **value)


def _goal(measure: str, source: str = "", **relation: Any) -> Goal:
    ((word, figure),) = relation.items()
    at_least = {"at_least": True, "at_most": False}[word]
    return Goal(measure, at_least, figure, source or (f"our {figure}" if isinstance(figure, str) else ""))


def _check(name: str, targets: Mapping[str, Target]) -> None:
    """Refuse a target that refers to what does not exist."""
    target = targets[name]
    for variant in target.runs.values():
        owner = targets[variant.target].runs[variant.name]
        known = {*targets[variant.target].needs, *targets[variant.target].runs}
        _refuse("placeholder", [each for each in owner.placeholders if each not in known])
    measures, exports = target.measures.values(), target.exports.values()
    runs = [*(each.run for each in exports), *(each.run for each in measures if each.run)]
    _refuse("needs", [each for each in target.needs if each not in DATA])
    _refuse("run", [each for each in runs if each not in target.runs])
    _refuse("export", [each.export for each in measures if not each.run and each.export not in target.exports])
    _refuse("value", [each.value for each in measures if each.export and each.value not in EXPORT_VALUES])
    named = [each.figure for each in target.goals if isinstance(each.figure, str)]
    named += [each.measure for each in target.goals]
    named += [each for pair in target.points.values() for each in pair]
    _refuse("measure", [each for each in named if each not in (*target.measures, "size")])


def _refuse(what: str, unknown: Sequence[str]) -> None:
    if unknown:
        raise ValueError(f"{what}: '{unknown[0]}' does not exist")
