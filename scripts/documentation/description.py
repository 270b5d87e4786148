"""Hooks as their docstrings, config files and classes describe them."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
from omegaconf import OmegaConf

from hookline.hooks import CONFIG_DIRECTORY, HookEntry, catalogue, load
from hookline.scripts.planning.trace import DECLARATIONS
from hookline.trainer.hook import GraphHook, Hook, HostHook
from hookline.trainer.network import Network
from hookline.trainer.run.blueprint import build_hook
from hookline.trainer.step.context import BuildContext

ROOT = CONFIG_DIRECTORY.parents[1]
HEADING = re.compile(r"^([A-Z][a-z]+):$", re.MULTILINE)
BEHIND = re.compile(r"^(Group|Cost|Reference): ", re.MULTILINE)


@dataclass(frozen=True)
class Docstring:
    """A docstring of Google's style as data."""

    summary: str  # its first line
    body: str = ""  # the text between it and the sections
    sections: Mapping[str, str] = field(default_factory=dict)  # text by heading, without the indentation

    def entries(self, heading: str) -> dict[str, str]:
        """Return the entries of a section written as "name: text", as arguments are; none if it is missing."""
        found: dict[str, str] = {}
        for entry in re.split(r"\n(?! )", self.sections.get(heading, "")):
            name, separator, text = entry.partition(": ")
            if entry and (not separator or name in found):
                raise ValueError(f"'{entry}' received in the section '{heading}:'. Expected 'name: text', each once.")
            found |= {name: " ".join(text.split())} if entry else {}
        return found


def parse_docstring(text: str | None) -> Docstring:
    """Return a docstring whose sections come last: a heading such as "Cost:" with indented text below or behind it."""
    head, *parts = HEADING.split(BEHIND.sub(r"\1:\n    ", inspect.cleandoc(text or "")))
    summary, _, body = head.partition("\n")
    sections: dict[str, str] = {}
    for heading, content in zip(parts[::2], parts[1::2], strict=True):
        if heading in sections or not content.strip() or re.search(r"^\S", content, re.MULTILINE):
            raise ValueError(f"The section '{heading}:' is empty, comes twice, or is not indented.")
        sections[heading] = textwrap.dedent(content).strip()
    return Docstring(summary, body.strip(), sections)


KEY = re.compile(r"  (?P<key>\w+):\s*(?P<default>\"[^\"]*\"|.*?)(?:\s+#\s*(?P<comment>.*))?")
FURTHER = re.compile(r"\s+#\s*(?P<comment>.*)")


@dataclass
class Option:
    """A key of a config file."""

    key: str
    default: str  # as it is written
    comment: str  # behind it and on the lines below it; empty for none


def read_options(path: Path) -> list[Option]:
    """Return the keys of a hook's config file, in their order, without the target."""
    options: list[Option] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith(" "):
            continue  # what the file is for, and the hook's name
        if (more := FURTHER.fullmatch(line)) and options:
            options[-1].comment = f"{options[-1].comment} {more['comment']}".strip()
        elif found := KEY.fullmatch(line):
            options.append(Option(found["key"], found["default"], found["comment"] or ""))
        else:
            raise ValueError(f"{path.name}: '{line.strip()}' is not a 'key: value  # comment' in one line.")
    return [option for option in options if option.key != "_target_"]


@dataclass(frozen=True)
class Description:
    """What is known of a hook."""

    name: str  # its key under `hooks`
    purpose: str  # one line
    hook_class: type[Hook]
    docstring: Docstring  # of the class
    arguments: Mapping[str, str]  # what the constructor's docstring says of each
    options: list[Option]
    state: Mapping[str, str]  # what it saves, by name: type and shape
    declared: Mapping[str, tuple[str, ...]]  # names that it reads, writes, projects and freezes
    source: Path  # its file, relative to the project
    config: Path  # its config file, relative to the project
    is_default: bool  # whether every run has it

    @property
    def group(self) -> str:
        """Return what kind of hook it says it is."""
        return self.docstring.sections.get("Group", "")

    @property
    def stages(self) -> list[str]:
        """Return the stages that it overrides."""
        return [name for name in overridden(self.hook_class) if name not in DECLARATIONS]


def overridden(hook_class: type[Hook]) -> list[str]:
    """Return the public methods that a hook overrides, in the order in which `trainer/hook.py` lists them."""
    interfaces: tuple[type[Any], ...] = (Hook, GraphHook, HostHook)
    return [
        name
        for interface in interfaces
        if issubclass(hook_class, interface)
        for name, method in vars(interface).items()
        if inspect.isfunction(method) and not name.startswith("_") and getattr(hook_class, name) is not method
    ]


def describe_hooks() -> list[Description]:
    """Return the project's own hooks, in alphabetical order. This imports and builds them, and so TensorFlow."""
    return [describe(entry) for entry in catalogue(CONFIG_DIRECTORY).values() if entry.plugin is None]


def describe(entry: HookEntry) -> Description:
    """Return what is known of a hook."""
    hook_class = load(entry.name)
    source = Path(inspect.getfile(hook_class)).resolve().relative_to(ROOT)
    try:
        docstring = parse_docstring(vars(hook_class).get("__doc__"))
        arguments = parse_docstring(getattr(vars(hook_class).get("__init__"), "__doc__", None)).entries("Args")
    except ValueError as error:
        raise ValueError(f"{source}, docstring of {hook_class.__name__}: {error}") from error
    node: Any = OmegaConf.to_container(OmegaConf.load(entry.config_file))
    state, declared = _declared(build_hook(entry.name, node[entry.name]))
    return Description(
        name=entry.name,
        purpose=entry.purpose,
        hook_class=hook_class,
        docstring=docstring,
        arguments=arguments,
        options=read_options(entry.config_file),
        state=state,
        declared=declared,
        source=source,
        config=entry.config_file.relative_to(ROOT),
        is_default=entry.name in OmegaConf.load(CONFIG_DIRECTORY / "default.yaml").defaults,
    )


CLASSES = 10
LAYERS = ("conv_1", "norm_1", "conv_2", "norm_2", "dense_1", "norm_3", "logits")
"""The layers with weights of the small network: two convolutions and two dense layers, with batch norm between them."""


def _declared(hook: Hook) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
    """Return what a hook declares on the small network; "<variable>" stands for each variable of the network."""
    saved = hook.state_dict() if isinstance(hook, HostHook) else {}
    state = {key: "null at first" if value is None else type(value).__name__ for key, value in saved.items()}
    if not isinstance(hook, GraphHook):
        return state, {}
    variables = _build(hook).variables
    declared = hook.declare()

    def owner(name: str) -> str:
        return next((each for each in variables if name.endswith(f"/{each}")), "")

    def general(name: str) -> str:
        return f"{name.removesuffix(owner(name))}<variable>" if owner(name) else name

    def in_order(names: Iterable[str]) -> tuple[str, ...]:
        chosen = {*names}
        return tuple(each for each in variables if each in chosen)

    for name, value in declared.state.items():
        form = f"{value.dtype.name} {value.shape.as_list()}" if value.shape.rank else str(value.dtype.name)
        if owner(name) and tuple(value.shape) == tuple(variables[owner(name)].shape):
            form = f"{value.dtype.name}, of the variable's shape"
        state[general(name)] = form
    return state, {
        "reads": hook.reads,
        "writes": tuple(dict.fromkeys(map(general, declared.writes))),
        "projects": in_order(declared.projected),
        "freezes": in_order(declared.frozen),
    }


def _build(hook: GraphHook) -> Network:
    """Let a hook rebuild a small network and build itself for it; return the network."""
    keras.utils.set_random_seed(0)
    inputs = features = keras.Input((8, 8, 1), name="images")
    for number in (1, 2):
        features = keras.layers.Conv2D(4, 3, use_bias=False, name=f"conv_{number}")(features)
        features = keras.layers.BatchNormalization(name=f"norm_{number}")(features)
        features = keras.layers.Activation("hard_tanh", name=f"activation_{number}")(features)
    features = keras.layers.Flatten(name="flatten")(features)
    features = keras.layers.Dense(16, use_bias=False, name="dense_1")(features)
    features = keras.layers.BatchNormalization(name="norm_3")(features)
    features = keras.layers.Activation("hard_tanh", name="activation_3")(features)
    small = keras.Model(inputs, keras.layers.Dense(CLASSES, name="logits")(features), name="small")
    model = hook.rebuild_model(small)
    network = Network("model", model, keras.optimizers.Adam())
    hook.network = network.name
    network.taps |= hook.request_taps(model)
    network.optimizer.build(model.trainable_variables)
    hook.build(BuildContext(network, total_steps=100, steps_per_epoch=10.0, batch_size=32, seed=0, classes=CLASSES))
    return network
