"""Hooks as their docstrings describe them."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
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
from hookline.trainer.run.build import build_hook
from hookline.trainer.step.context import BuildContext

HEADING = re.compile(r"([A-Z][a-z]+):")


@dataclass(frozen=True)
class Docstring:
    """Hold a docstring.

    Attributes:
        summary: its first line.
        body: the text between it and the sections.
        sections: text by heading, without the indentation.
    """

    summary: str
    body: str = ""
    sections: Mapping[str, str] = field(default_factory=dict)

    def entries(self, heading: str) -> dict[str, str]:
        """Return the entries of a section written as "name: text", as arguments are; none if it is missing."""
        return _entries(heading, self.sections.get(heading, ""))


def parse_docstring(text: str | None) -> Docstring:
    """Return a docstring of Google's style as data.

    A section is a heading such as "Cost:" alone in a line, with indented text below it. Sections come last.
    """
    summary, _, rest = inspect.cleandoc(text or "").partition("\n")
    body: list[str] = []
    sections: dict[str, list[str]] = {}
    lines = body
    for line in rest.splitlines():
        if heading := HEADING.fullmatch(line):
            if heading[1] in sections:
                raise ValueError(f"The section '{heading[1]}:' comes twice.")
            lines = sections.setdefault(heading[1], [])
        elif line.strip() and not line.startswith(" ") and lines is not body:
            raise ValueError(f"'{line}' stands below a section without being indented. Expected sections at the end.")
        else:
            lines.append(line)
    texts = {heading: textwrap.dedent("\n".join(lines)).strip() for heading, lines in sections.items()}
    if empty := [heading for heading, each in texts.items() if not each]:
        raise ValueError(f"The section '{empty[0]}:' is empty. Expected indented text below it.")
    return Docstring(summary, "\n".join(body).strip(), texts)


def _entries(heading: str, section: str) -> dict[str, str]:
    found: dict[str, str] = {}
    name = ""
    for line in section.splitlines():
        if line.startswith(" ") and name:
            found[name] += f" {line.strip()}"
            continue
        name, separator, text = line.partition(": ")
        if not separator or name in found:
            raise ValueError(f"'{line}' in the section '{heading}:' received. Expected 'name: text', each name once.")
        found[name] = text
    return found


KEY = re.compile(r"  (?P<key>\w+):\s*(?P<default>\"[^\"]*\"|.*?)(?:\s+#\s*(?P<comment>.*))?")
FURTHER = re.compile(r"\s+#\s*(?P<comment>.*)")
TARGET = "_target_"


@dataclass(frozen=True)
class Option:
    """Hold a key.

    Attributes:
        key: its name.
        default: as it is written.
        comment: behind it and on the lines below it; empty for none.
    """

    key: str
    default: str
    comment: str


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
            raise ValueError(f"{path.name}: '{line.strip()}' is no 'key: value  # comment' in one line.")
    return [option for option in options if option.key != TARGET]


CLASSES = 10
LAYERS = ("conv_1", "norm_1", "conv_2", "norm_2", "dense_1", "norm_3", "logits")
"""The layers with weights: two convolutions and two dense layers, with batch norm between them."""
VARIABLE = "<variable>"


@dataclass(frozen=True)
class Declared:
    """Hold what a built hook declares: variables of the network by name, state with `VARIABLE` in their place.

    Attributes:
        state: what it keeps by name: type and shape of a graph hook's variables, the value of a host hook's entries.
        writes: names among the state that its update ops write.
        frozen: variables that get no gradient, and statistics that are left alone.
        projected: variables that it may rewrite after the optimizer.
        reads: state of other hooks, as "hook/variable".
    """

    state: Mapping[str, str]
    writes: tuple[str, ...] = ()
    frozen: tuple[str, ...] = ()
    projected: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()


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


INTERFACES: tuple[type[Hook], ...] = (Hook, GraphHook, HostHook)


def overridden_stages(hook_class: type[Hook]) -> list[str]:
    """Return the stages in which a hook has something to do, in the order in which `trainer/hook.py` lists them."""
    return [name for name in _overridden(hook_class) if name not in DECLARATIONS]


def overridden_declarations(hook_class: type[Hook]) -> list[str]:
    """Return the methods by which a hook describes itself, where it overrides the interface's answer."""
    return [name for name in _overridden(hook_class) if name in DECLARATIONS]


def _overridden(hook_class: type[Hook]) -> Iterator[str]:
    for interface in INTERFACES:
        for name, method in vars(interface).items():
            is_public = inspect.isfunction(method) and not name.startswith("_")
            if is_public and issubclass(hook_class, interface) and getattr(hook_class, name) is not method:
                yield name


ROOT = CONFIG_DIRECTORY.parents[1]


@dataclass(frozen=True)
class Description:
    """Hold what is known of a hook.

    Attributes:
        name: its key under `hooks`.
        purpose: one line.
        hook_class: of the hook.
        docstring: of the class.
        arguments: what the constructor's docstring says of each.
        options: the keys of its config file.
        stages: that it overrides.
        declarations: that it overrides.
        declared: by a hook with the defaults of the config file.
        source: its file, relative to the project.
        config: its config file, relative to the project.
        is_default: whether every run has it.
    """

    name: str
    purpose: str
    hook_class: type[Hook]
    docstring: Docstring
    arguments: Mapping[str, str]
    options: list[Option]
    stages: list[str]
    declarations: list[str]
    declared: Declared
    source: Path
    config: Path
    is_default: bool

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
    return Description(
        name=entry.name,
        purpose=entry.purpose,
        hook_class=hook_class,
        docstring=docstring,
        arguments=arguments,
        options=read_options(entry.config_file),
        stages=overridden_stages(hook_class),
        declarations=overridden_declarations(hook_class),
        declared=declared_by(build_hook(entry.name, _node(entry))),
        source=source,
        config=entry.config_file.relative_to(ROOT),
        is_default=entry.name in OmegaConf.load(CONFIG_DIRECTORY / "default.yaml").defaults,
    )


def _node(entry: HookEntry) -> dict[str, Any]:
    content: Any = OmegaConf.to_container(OmegaConf.load(entry.config_file))
    return content[entry.name]
