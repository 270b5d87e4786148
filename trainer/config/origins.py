"""What a composed config is made of: each file in the order in which Hydra merges them, then the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from omegaconf import OmegaConf

from trainer.config import schema
from trainer.config.choices import is_group_choice
from trainer.config.compose import CONFIG_DIR, SCHEMA_NAME, Composer
from trainer.config.paths import follow
from trainer.config.yaml_places import Place, read_places

ROOT = CONFIG_DIR.parent
SCHEME = "file://"
GLOBAL = ("", "_global_")
OUTSIDE = ("hydra",)
"""Keys at the root that are Hydra's own."""


@dataclass(frozen=True)
class Layer:
    """Hold what one file or override sets.

    Attributes:
        label: of the file, or of the override.
        tree: plain values, from the root of the config.
        locate: the place of a key in the file; None where it has none.
        option: of a group that the file is, such as "recipe/bnn"; empty for an override.
    """

    label: str
    tree: Mapping[str, Any]
    locate: Callable[[str], Place | None] = lambda path: None
    option: str = ""

    def place(self, path: str) -> str:
        """Return the label, with the line of a key where there is one."""
        found = self.locate(path)
        return self.label if found is None else f"{self.label}:{found.line}"


@dataclass(frozen=True)
class Step:
    """Hold what one layer says of a key.

    Attributes:
        layer: that says it.
        path: the key, or the one above it that the layer sets to a list, or to something without that key.
        value: that the layer sets there; of a list of which it sets entries, the whole.
        removes: whether it does.
    """

    layer: Layer
    path: str
    value: Any
    removes: bool = False

    @property
    def place(self) -> str:
        """Return the file with the line, or the override."""
        return self.layer.place(self.path)

    @property
    def comment(self) -> str:
        """Return the comment beside it."""
        found = self.layer.locate(self.path)
        return "" if found is None else found.comment


def layers_of(overrides: Sequence[Override], composer: Composer) -> list[Layer]:
    """Return everything that Hydra composes a config of, in its order.

    Args:
        overrides: the user's.
        composer: composes it.
    """
    texts = [str(override.input_line) for override in overrides]
    defaults = composer.loader.compute_defaults_list(composer.config_name, texts, RunMode.RUN).defaults
    files = [
        _file_layer(default.config_path, default.package or "", composer)
        for default in defaults
        if default.config_path is not None and not is_outside(default.package or "")
    ]
    setting = [each for each in overrides if not is_group_choice(each, composer)]
    return [*(layer for layer in files if layer.tree), *map(override_layer, setting)]


def chain_of(key: str, layers: Sequence[Layer]) -> list[Step]:
    """Return what each layer says of a key, in order; the last one stands.

    Args:
        key: such as "optimizer.learning_rate".
        layers: in the order of composition.
    """
    steps: list[Step] = []
    for layer in layers:
        step = _look_up(layer, key)
        if step is not None and (steps or not step.removes):
            value = _merged(steps[-1].value, step.value) if steps else step.value
            steps.append(replace(step, value=value))
    return steps


def is_outside(name: str) -> bool:
    """Return whether a package or a group is one of Hydra's own.

    Args:
        name: such as "hydra.launcher" or "hydra/launcher".
    """
    return name.replace("/", ".").partition(".")[0] in OUTSIDE


def leaves_of(value: Any, path: str) -> list[str]:
    """Return the keys below a value that hold no further keys; the path itself where it holds none.

    Args:
        value: plain.
        path: its key.
    """
    if not isinstance(value, Mapping) or not value:
        return [path]
    return [leaf for name, each in value.items() for leaf in leaves_of(each, f"{path}.{name}" if path else str(name))]


def _look_up(layer: Layer, key: str) -> Step | None:
    passed, rest = follow(layer.tree, key)
    if not passed or (rest is not None and isinstance(passed[-1][1], Mapping)):
        return None
    lists = [depth for depth, (_, value) in enumerate(passed, start=1) if isinstance(value, list)]
    names = [name for name, _ in passed[: min(lists, default=None)]]  # a file names no entry of a list
    return Step(layer, ".".join(names), passed[-1][1], removes=rest is not None)


def _merged(before: Any, value: Any) -> Any:
    """Return a list with those entries replaced that an override such as model.units.0=5 names."""
    if not isinstance(before, list) or not isinstance(value, Mapping) or not value:
        return value
    if not all(isinstance(place, str) and place.isdecimal() and int(place) < len(before) for place in value):
        return value  # it takes the place of the list
    entries = {int(place): each for place, each in value.items()}
    return [_entry(each, entries.get(place, each)) for place, each in enumerate(before)]


def _entry(before: Any, value: Any) -> Any:
    """Return an entry of a list with what an override sets of it."""
    if isinstance(before, Mapping) and isinstance(value, Mapping):
        return {**before, **{name: _entry(before.get(name), each) for name, each in value.items()}}
    return _merged(before, value)


def _file_layer(config_path: str, package: str, composer: Composer) -> Layer:
    found = composer.load(config_path)
    content: Any = OmegaConf.to_container(found.config) if OmegaConf.is_dict(found.config) else {}
    content = {name: each for name, each in content.items() if name not in ("defaults", *OUTSIDE)}
    package = "" if package in GLOBAL else package
    tree = _nested(package, content) if content else {}
    if config_path == SCHEMA_NAME:
        return Layer(_relative(Path(schema.__file__)), tree, _schema_place)
    if not str(found.path).startswith(SCHEME):
        return Layer(config_path, tree, option=config_path)
    path = Path(str(found.path).removeprefix(SCHEME)) / f"{config_path.removesuffix('.yaml')}.yaml"
    prefix = f"{package}." if package else ""

    places = cache(lambda: read_places(path))  # few of the files set a key that is asked for

    def locate(key: str) -> Place | None:
        return places().get(key.removeprefix(prefix)) if key.startswith(prefix) else None

    return Layer(_relative(path), tree, locate, config_path)


def override_layer(override: Override) -> Layer:
    """Return what an override of the command line sets.

    Args:
        override: one that chooses no option of a group.
    """
    value = None if override.is_delete() else override.value()
    return Layer(f"the command line, {override.input_line}", _nested(override.key_or_group, value))


def _nested(path: str, value: Any) -> dict[str, Any]:
    for part in reversed(path.split(".") if path else []):
        value = {part: value}
    return value if isinstance(value, dict) else {}


def _relative(path: Path) -> str:
    """Return a path as short as it can be said: from the project's root, or from where the user stands."""
    for root in (ROOT, Path.cwd()):
        if path.is_relative_to(root):
            return path.relative_to(root).as_posix()
    return str(path)


def _schema_place(key: str) -> Place | None:
    """Return the line of a setting in the schema's source."""
    section, _, name = key.rpartition(".")
    kind = {"": "class TrainConfig", "trainer": "class TrainerConfig"}.get(section)
    lines = Path(schema.__file__).read_text(encoding="utf-8").splitlines()
    within = False
    for number, line in enumerate(lines, start=1):
        within = line.startswith(f"{kind}:") if line.startswith("class ") else within
        if within and line.startswith(f"    {name}:"):
            return Place(number)
    return None
