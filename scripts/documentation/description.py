"""Hooks as their docstrings describe them."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from omegaconf import OmegaConf

from hookline.hooks import CONFIG_DIRECTORY, HookEntry, catalogue, load
from hookline.scripts.planning.trace import DECLARATIONS
from hookline.trainer.hook import GraphHook, Hook, HostHook
from hookline.trainer.network import Network
from hookline.trainer.run.blueprint import build_hook
from hookline.trainer.step.context import BuildContext

HEADING = re.compile(r"^([A-Z][a-z]+):$", re.MULTILINE)


@dataclass(frozen=True)
class Docstring:
    """Hold a docstring."""

    summary: str  # its first line
    body: str = ""  # the text between it and the sections
    sections: Mapping[str, str] = field(default_factory=dict)  # text by heading, without the indentation

    def entries(self, heading: str) -> dict[str, str]:
        """Return the entries of a section written as "name: text", as arguments are; none if it is missing."""
        found: dict[str, str] = {}
        for entry in re.split(r"\n(?! )", self.sections.get(heading, "")):
            name, separator, text = entry.partition(": ")
            if entry and (not separator or name in found):
                raise ValueError(f"'{entry}' in the section '{heading}:' received. Expected 'name: text', each once.")
            found |= {name: " ".join(text.split())} if entry else {}
        return found


def parse_docstring(text: str | None) -> Docstring:
    """Return a docstring of Google's style as data.

    A section is a heading such as "Cost:" alone in a line, with indented text below it. Sections come last.
    """
    head, *parts = HEADING.split(inspect.cleandoc(text or ""))
    summary, _, body = head.partition("\n")
    sections: dict[str, str] = {}
    for heading, content in zip(parts[::2], parts[1::2], strict=True):
        if outside := re.search(r"^\S.*", content, re.MULTILINE):
            raise ValueError(f"'{outside[0]}' stands below a section without being indented. Expected sections last.")
        if heading in sections or not content.strip():
            raise ValueError(f"The section '{heading}:' is empty or comes twice. Expected text below it, once.")
        sections[heading] = textwrap.dedent(content).strip()
    return Docstring(summary, body.strip(), sections)


KEY = re.compile(r"  (?P<key>\w+):\s*(?P<default>\"[^\"]*\"|.*?)(?:\s+#\s*(?P<comment>.*))?")
FURTHER = re.compile(r"\s+#\s*(?P<comment>.*)")
TARGET = "_target_"


@dataclass(frozen=True)
class Option:
    """Hold a key."""

    key: str
    default: str  # as it is written
    comment: str  # behind it and on the lines below it; empty for none


def read_options(path: Path) -> list[Option]:
    """Return what a hook's config file says of its keys, in their order, without the target."""
    options: list[Option] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith(" "):
            continue  # what the file is for, and the hook's name
        if (more := FURTHER.fullmatch(line)) and options:
            last = options.pop()
            options.append(Option(last.key, last.default, f"{last.comment} {more['comment']}".strip()))
        elif found := KEY.fullmatch(line):
            options.append(Option(found["key"], found["default"], found["comment"] or ""))
        else:
            raise ValueError(f"{path.name}: '{line.strip()}' is not a 'key: value  # comment' in one line.")
    return [option for option in options if option.key != TARGET]


CLASSES = 10
LAYERS = ("conv_1", "norm_1", "conv_2", "norm_2", "dense_1", "norm_3", "logits")
"""The layers with weights: two convolutions and two dense layers, with batch norm between them."""
VARIABLE = "<variable>"


@dataclass(frozen=True)
class Declared:
    """Hold what a built hook declares: variables of the network by name, state with `VARIABLE` in their place."""

    # what it keeps by name: type and shape of a graph hook's variables, the value of a host hook's entries
    state: Mapping[str, str]
    writes: tuple[str, ...] = ()  # names among the state that its update ops write
    frozen: tuple[str, ...] = ()  # variables that get no gradient, and statistics that are left alone
    projected: tuple[str, ...] = ()  # variables that it may rewrite after the optimizer
    reads: tuple[str, ...] = ()  # state of other hooks, as "hook/variable"


def declared_by(hook: Hook) -> Declared:
    """Return what a hook declares on the small network, in a run of 10 epochs of 10 steps."""
    saved = hook.state_dict() if isinstance(hook, HostHook) else {}
    state = {key: "null at first" if value is None else type(value).__name__ for key, value in saved.items()}
    if not isinstance(hook, GraphHook):
        return Declared(state)
    variables = _build(hook).variables
    declared = hook.declare()
    for each, value in declared.state.items():
        state[_general(each, variables)] = _form(each, value, variables)
    return Declared(
        state,
        tuple(dict.fromkeys(_general(each, variables) for each in declared.writes)),
        _in_order(declared.frozen, variables),
        _in_order(declared.projected, variables),
        hook.reads,
    )


def _build(hook: GraphHook) -> Network:
    """Let a hook rebuild a new network and build itself for it; return the network."""
    keras.utils.set_random_seed(0)
    model = hook.rebuild_model(small_model())
    network = Network("model", model, keras.optimizers.Adam())
    hook.network = network.name
    network.taps |= hook.request_taps(model)
    network.optimizer.build(model.trainable_variables)
    hook.build(BuildContext(network, total_steps=100, steps_per_epoch=10.0, batch_size=32, seed=0, classes=CLASSES))
    return network


def small_model() -> keras.Model:
    """Return the network: images [8, 8, 1] to logits [10]."""
    inputs = features = keras.Input((8, 8, 1), name="images")
    for number in (1, 2):
        features = keras.layers.Conv2D(4, 3, use_bias=False, name=f"conv_{number}")(features)
        features = keras.layers.BatchNormalization(name=f"norm_{number}")(features)
        features = keras.layers.Activation("hard_tanh", name=f"activation_{number}")(features)
    features = keras.layers.Flatten(name="flatten")(features)
    features = keras.layers.Dense(16, use_bias=False, name="dense_1")(features)
    features = keras.layers.BatchNormalization(name="norm_3")(features)
    features = keras.layers.Activation("hard_tanh", name="activation_3")(features)
    return keras.Model(inputs, keras.layers.Dense(CLASSES, name="logits")(features), name="small")


def _owner(name: str, variables: Iterable[str]) -> str | None:
    """Return the network's variable that a state such as "mask/dense/kernel" belongs to; None for no such."""
    return next((each for each in variables if name.endswith(f"/{each}")), None)


def _general(name: str, variables: Iterable[str]) -> str:
    owner = _owner(name, variables)
    return name if owner is None else f"{name.removesuffix(owner)}{VARIABLE}"


def _form(name: str, value: tf.Variable, variables: Mapping[str, keras.Variable]) -> str:
    """Return dtype and shape."""
    owner = _owner(name, variables)
    if owner is not None and tuple(value.shape) == tuple(variables[owner].shape):
        return f"{value.dtype.name}, of the variable's shape"
    return f"{value.dtype.name} {value.shape.as_list()}" if value.shape.rank else str(value.dtype.name)


def _in_order(names: Iterable[str], variables: Iterable[str]) -> tuple[str, ...]:
    chosen = set(names)
    return tuple(each for each in variables if each in chosen)


INTERFACES: tuple[type[Any], ...] = (Hook, GraphHook, HostHook)


def overridden(hook_class: type[Hook]) -> list[str]:
    """Return the public methods that a hook overrides, in the order in which `trainer/hook.py` lists them."""
    return [
        name
        for interface in INTERFACES
        if issubclass(hook_class, interface)
        for name, method in vars(interface).items()
        if inspect.isfunction(method) and not name.startswith("_") and getattr(hook_class, name) is not method
    ]


ROOT = CONFIG_DIRECTORY.parents[1]


@dataclass(frozen=True)
class Description:
    """Hold what is known of a hook."""

    name: str  # its key under `hooks`
    purpose: str  # one line
    hook_class: type[Hook]  # of the hook
    docstring: Docstring  # of the class
    arguments: Mapping[str, str]  # what the constructor's docstring says of each
    options: list[Option]  # the keys of its config file
    stages: list[str]  # that it overrides
    declarations: list[str]  # that it overrides
    declared: Declared  # by a hook with the defaults of the config file
    source: Path  # its file, relative to the project
    config: Path  # its config file, relative to the project
    is_default: bool  # whether every run has it

    @property
    def group(self) -> str:
        """Return what kind of hook it says it is."""
        return self.docstring.sections.get("Group", "")


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
    return Description(
        name=entry.name,
        purpose=entry.purpose,
        hook_class=hook_class,
        docstring=docstring,
        arguments=arguments,
        options=read_options(entry.config_file),
        stages=[name for name in overridden(hook_class) if name not in DECLARATIONS],
        declarations=[name for name in overridden(hook_class) if name in DECLARATIONS],
        declared=declared_by(build_hook(entry.name, node[entry.name])),
        source=source,
        config=entry.config_file.relative_to(ROOT),
        is_default=entry.name in OmegaConf.load(CONFIG_DIRECTORY / "default.yaml").defaults,
    )
