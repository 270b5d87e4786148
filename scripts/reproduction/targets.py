"""The targets of the results table: which runs are made, what is measured, and what it is compared with."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from hookline.trainer.errors import UserError

FILE = Path(__file__).parent / "targets.yaml"
IMAGES = Path(__file__).parent / "targets_images.yaml"
"""The rest of our targets."""
DATA = ("mnist", "cifar10", "clothing")
"""Data for which the user gives a path."""
PLACEHOLDER = re.compile(r"\{(\w+)\}")
"""Placeholder in an override: the path of data, or another run; does not match a mapping such as {dense_1: 0.9}."""
EXPORT_VALUES = ("bytes", "file", "gzip", "accuracy")
RELATIONS = ("at_least", "at_most")
SIZE = "size"
"""In `points` of a target: the value in the row's column "size"."""


class Unit(NamedTuple):
    """How a value is shown."""

    scale: float  # factor of the value
    text: str  # after the number
    decimals: int
    complement: bool = False  # whether to show 1 - value

    def of(self, value: float) -> float:
        """Return a value as it is shown, but not yet rounded to `decimals`."""
        return round(self.scale * (1 - value if self.complement else value), 6)


UNITS = {
    "percent": Unit(100, "%", 1),
    "error": Unit(100, "%", 2, complement=True),
    "number": Unit(1, "", 3),
    "KB": Unit(1 / 1000, "KB", 1),
    "KiB": Unit(1 / 1024, "KiB", 2),
}


@dataclass(frozen=True)
class Variant:
    """One way to train, made with every seed."""

    name: str  # "<target>/<variant>"
    overrides: tuple[str, ...]  # of train.py, with placeholders, without a seed
    needs: Mapping[str, Variant]  # variants that it starts from, by placeholder; other placeholders are data

    def run(self, seed: int) -> str:
        """Return the name of a run and of its directory, such as "bnn/bnn_0"."""
        return f"{self.name}_{seed}"

    def filled(self, data: Mapping[str, str], run: Callable[[Variant], str]) -> list[str]:
        """Return the overrides with the names in braces replaced by the paths of data and runs."""
        places = {**data, **{name: run(each) for name, each in self.needs.items()}}
        return [PLACEHOLDER.sub(lambda found: places[found[1]], text) for text in self.overrides]

    def chain(self) -> Iterator[Variant]:
        """Yield the variants that it starts from, and itself last."""
        for each in self.needs.values():
            yield from each.chain()
        yield self


@dataclass(frozen=True)
class Export:
    """An exported file to measure."""

    run: str  # variant that is exported
    options: Sequence[str]  # of scripts/export.py
    ending: str  # of the file

    @property
    def name(self) -> str:
        """Return a name that depends on the options, such as "format-sparse_codebook-5"."""
        return "_".join(re.sub(r"[^\w.]+", "-", text) for text in self.options)


@dataclass(frozen=True)
class Measure:
    """A value to read from a run or an export; one of `metric`, `summary` and `value` is set."""

    name: str
    unit: Unit
    run: str = ""  # variant, or empty
    export: str = ""  # key of an export, or empty
    metric: str = ""  # of the split
    split: str = "test"
    summary: str = ""  # path in summary.json, joined by dots
    value: str = ""  # of the export


@dataclass(frozen=True)
class Target:
    """A row of the table before it is measured; the file explains each entry."""

    name: str
    title: str
    recipe: str
    data: str
    seeds: Sequence[int]
    runs: Mapping[str, Variant]
    measures: Mapping[str, Measure]
    needs: Sequence[str] = ()
    exports: Mapping[str, Export] = field(default_factory=dict)
    goals: Sequence[Mapping[str, Any]] = ()
    points: Mapping[str, Sequence[str]] = field(default_factory=dict)  # by label: measures of accuracy and of bytes
    size: bool = True


def read_targets(path: Path = FILE) -> dict[str, Target]:
    """Return the targets of a file, in its order; our own are in two files."""
    content: dict[str, Any] = {}
    name: Any = "the file"
    try:
        for file in (path, IMAGES) if path == FILE else (path,):
            content |= yaml.safe_load(file.read_text(encoding="utf-8"))
        targets = {}
        for name, entry in content.items():
            if not str(name).startswith("_"):  # shared by other entries of the file
                targets[name] = _target(name, entry, content)
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError, AttributeError) as error:
        why = f"{type(error).__name__}: {error}"
        raise UserError(f"targets={path}, {name}: {why}. Expected the form at the top of {FILE.name}.") from error
    return targets


def _target(name: str, entry: Mapping[str, Any], content: Mapping[str, Any]) -> Target:
    runs = {key: _variant(name, key, content) for key in entry["runs"]}
    exports = {key: Export(**value) for key, value in entry.get("exports", {}).items()}
    measures = {key: _measure(key, **value) for key, value in entry["measures"].items()}
    target = Target(name=name, **{**entry, "runs": runs, "exports": exports, "measures": measures})
    relations = [key for goal in target.goals for key in goal if key not in ("measure", "source")]
    named = {goal["measure"] for goal in target.goals} | {name for pair in target.points.values() for name in pair}
    named |= {goal[key] for goal in target.goals for key in RELATIONS if isinstance(goal.get(key), str)}
    for what, names, known in (  # names that refer to something that has to exist
        ("needs", target.needs, DATA),
        ("run", [each.run for each in exports.values()], runs),
        ("run", [each.run for each in measures.values() if each.run], runs),
        ("export", [each.export for each in measures.values() if not each.run], exports),
        ("value", [each.value for each in measures.values() if each.export], EXPORT_VALUES),
        ("relation", relations, RELATIONS),
        ("measure", named - {SIZE}, measures),
    ):
        if unknown := [each for each in names if each not in known]:
            raise ValueError(f"{what}: '{unknown[0]}' does not exist")
    return target


def _variant(target: str, name: str, content: Mapping[str, Any]) -> Variant:
    value = content[target]["runs"][name]
    if isinstance(value, Mapping):
        return _variant(value["of"], value["variant"], content)
    overrides = tuple(_flat(value))
    named = dict.fromkeys(PLACEHOLDER.findall(" ".join(overrides)))
    runs = [each for each in named if each not in content[target].get("needs", ())]  # the others are data
    return Variant(f"{target}/{name}", overrides, {each: _variant(target, each, content) for each in runs})


def _flat(values: Sequence[Any]) -> list[str]:
    """Return overrides as one flat list; YAML aliases nest one list in another."""
    return [text for value in values for text in (_flat(value) if isinstance(value, list) else [value])]


def _measure(name: str, decimals: int | None = None, **value: Any) -> Measure:
    unit = UNITS[value.pop("as")]
    return Measure(name, unit if decimals is None else unit._replace(decimals=decimals), **value)


def runs_of(target: Target, seeds: Sequence[int]) -> dict[str, tuple[Variant, int]]:
    """Return the variant and seed of each run that a target needs, by name: all runs of a seed, then the next seed."""
    ordered = ((each, seed) for seed in seeds for variant in target.runs.values() for each in variant.chain())
    return {variant.run(seed): (variant, seed) for variant, seed in ordered}


PLACES = {"mnist": "mnist.npz", "cifar10": "cifar10", "clothing": "clothing"}
"""Paths of data in commands, as a user types them."""


def commands_of(target: Target, seeds: Sequence[int]) -> list[str]:
    """Return the command lines that make the runs and exports of a target, as a user types them."""
    variants = [variant for variant, _ in runs_of(target, seeds[:1]).values()]
    named = {each.name for variant in variants for each in variant.needs.values()}  # by others: they need a run_dir
    named |= {target.runs[export.run].name for export in target.exports.values()}
    if not named and len(seeds) > 1:
        several = ",".join(map(str, seeds))
        return [f"python train.py -m --jobs 1 {_words(variant, several)}" for variant in variants]
    seed = str(seeds[0]) if len(seeds) == 1 else "$seed"
    lines = []
    for variant in variants:
        run = f"runs/{variant.name}_{seed}"
        lines.append(f"python train.py {_words(variant, seed)}{f' run_dir={run}' if variant.name in named else ''}")
        own = [export for export in target.exports.values() if target.runs[export.run].name == variant.name]
        for export in own:
            alone = len(own) == 1  # one of several needs a path of its own
            path = f"{run}/export/{'model' if alone else export.name}{export.ending}"
            output = [] if alone else [f"output={path}"]
            lines.append(" ".join([f"python scripts/export.py run={run}", *export.options, *output]))
            lines.append(f"python scripts/evaluate.py model={path}")
    if len(seeds) == 1:
        return lines
    return [f"for seed in {' '.join(map(str, seeds))}; do", *(f"    {line}" for line in lines), "done"]


def _words(variant: Variant, seed: str) -> str:
    words = variant.filled(PLACES, lambda other: f"runs/{other.name}_{seed}")
    return " ".join([*(f'"{word}"' if set("{}[]*?' ") & set(word) else word for word in words), f"seed={seed}"])
