"""Hooks as their docstrings, config files and classes describe them, and what their documentation lacks."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Mapping
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


def read_options(path: Path) -> dict[str, tuple[str, str]]:
    """Return default, as it is written, and comment of each key of a hook's config file, without the target."""
    options: dict[str, tuple[str, str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith(" "):
            continue  # what the file is for, and the hook's name
        if (more := FURTHER.fullmatch(line)) and options:
            key, (default, comment) = list(options.items())[-1]
            options[key] = (default, f"{comment} {more['comment']}".strip())
        elif found := KEY.fullmatch(line):
            options[found["key"]] = (found["default"], found["comment"] or "")
        else:
            raise ValueError(f"{path.name}: '{line.strip()}' is not a 'key: value  # comment' in one line.")
    options.pop("_target_", None)
    return options


@dataclass(frozen=True)
class Description:
    """What is known of a hook."""

    entry: HookEntry
    hook_class: type[Hook]
    docstring: Docstring  # of the class
    arguments: Mapping[str, str]  # what the constructor's docstring says of each
    options: Mapping[str, tuple[str, str]]  # default and comment of each key of its config
    state: Mapping[str, str]  # what it saves, by name: type and shape
    declared: Mapping[str, tuple[str, ...]]  # names that it reads, writes, projects and freezes
    source: Path  # its file, relative to the project
    config: Path  # its config file, relative to the project

    @property
    def name(self) -> str:
        return self.entry.name

    @property
    def is_default(self) -> bool:
        """Return whether every run has it."""
        return self.name in OmegaConf.load(CONFIG_DIRECTORY / "default.yaml").defaults

    @property
    def group(self) -> str:
        """Return what kind of hook it says it is."""
        return self.docstring.sections.get("Group", "")

    @property
    def overridden(self) -> list[str]:
        """Return the public methods that it overrides, in the order in which `trainer/hook.py` lists them."""
        interfaces: tuple[type[Any], ...] = (Hook, GraphHook, HostHook)
        return [
            name
            for interface in interfaces
            if issubclass(self.hook_class, interface)
            for name, method in vars(interface).items()
            if inspect.isfunction(method) and name[0] != "_" and getattr(self.hook_class, name) is not method
        ]

    @property
    def stages(self) -> list[str]:
        """Return the stages that it overrides."""
        return [name for name in self.overridden if name not in DECLARATIONS]


def describe_hooks() -> list[Description]:
    """Return the project's own hooks, in alphabetical order. This imports and builds them, and so TensorFlow."""
    return [_describe(entry) for entry in catalogue(CONFIG_DIRECTORY).values() if entry.plugin is None]


def _describe(entry: HookEntry) -> Description:
    hook_class = load(entry.name)
    source = Path(inspect.getfile(hook_class)).resolve().relative_to(ROOT)
    try:
        docstring = parse_docstring(vars(hook_class).get("__doc__"))
        arguments = parse_docstring(getattr(vars(hook_class).get("__init__"), "__doc__", None)).entries("Args")
    except ValueError as error:
        raise ValueError(f"{source}, docstring of {hook_class.__name__}: {error}") from error
    node: Any = OmegaConf.to_container(OmegaConf.load(entry.config_file))
    declared = _declared(build_hook(entry.name, node[entry.name]))
    config, options = entry.config_file.relative_to(ROOT), read_options(entry.config_file)
    return Description(entry, hook_class, docstring, arguments, options, *declared, source, config)


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

    def general(name: str) -> tuple[str, Any]:
        owner = next((each for each in variables if name.endswith(f"/{each}")), "")
        return (f"{name.removesuffix(owner)}<variable>", variables[owner]) if owner else (name, None)

    for name, value in declared.state.items():
        shown, owner = general(name)
        form = f"{value.dtype.name} {value.shape.as_list()}" if value.shape.rank else str(value.dtype.name)
        if owner is not None and tuple(value.shape) == tuple(owner.shape):
            form = f"{value.dtype.name}, of the variable's shape"
        state[shown] = form
    return state, {
        "reads": hook.reads,
        "writes": tuple(dict.fromkeys(general(name)[0] for name in declared.writes)),
        "projects": tuple(name for name in variables if name in declared.projected),
        "freezes": tuple(name for name in variables if name in declared.frozen),
    }


def _build(hook: GraphHook) -> Network:
    """Let a hook rebuild a small network and build itself for it; return the network."""
    keras.utils.set_random_seed(0)
    inputs = features = keras.Input((8, 8, 1), name="images")
    layers = [keras.layers.Conv2D(4, 3, use_bias=False, name=f"conv_{number}") for number in (1, 2)]
    layers += [keras.layers.Dense(16, use_bias=False, name="dense_1")]
    for number, layer in enumerate(layers, start=1):
        flat = keras.layers.Flatten(name="flatten")(features) if layer.name == "dense_1" else features
        features = keras.layers.BatchNormalization(name=f"norm_{number}")(layer(flat))
        features = keras.layers.Activation("hard_tanh", name=f"activation_{number}")(features)
    small = keras.Model(inputs, keras.layers.Dense(CLASSES, name="logits")(features), name="small")
    model = hook.rebuild_model(small)
    network = Network("model", model, keras.optimizers.Adam())
    hook.network = network.name
    network.taps |= hook.request_taps(model)
    network.optimizer.build(model.trainable_variables)
    hook.build(BuildContext(network, total_steps=100, steps_per_epoch=10.0, batch_size=32, seed=0, classes=CLASSES))
    return network
