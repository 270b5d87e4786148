"""The settings of a config: their names, types, limits and help, and the checks of their values."""

from __future__ import annotations

import dataclasses
import math
import re
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Union, get_args, get_origin

from hookline.trainer.config.overrides import show
from hookline.trainer.errors import UserError, check_choice, check_integer, check_number, did_you_mean

TARGET = "_target_"


def setting(default: Any, help_text: str, **limits: Any) -> Any:
    """Return a dataclass field with a help text and limits."""
    return field(default=default, metadata={"help": help_text, **limits})


def section(help_text: str, **limits: Any) -> Any:
    """Return a dataclass field for a free-form mapping: a `_target_` with its arguments, or several by name."""
    return field(default_factory=dict, metadata={"help": help_text, **limits})


BALANCED = "balanced"
"""Class weights or shares that compensate for the sizes of the classes."""
NAMED = {"hooks": "hook", "augment": "augmentation"}
"""Sections that hold parts by name (+hooks=<name> adds, hooks.<name>=null removes), with the word for such a part."""
PARTS = ("data", "model", "schedule", "optimizer", "task")
"""Sections that are one part each."""
BINDING = ("network", "objective")
"""Keys that the config of any graph hook may have, whether or not its constructor takes them."""


@dataclass
class TrainerConfig:
    """Set how long, how often and where to train."""

    epochs: int | None = setting(None, "passes over the training split", minimum=1, maximum=10**9)
    steps: int | None = setting(None, "optimizer steps", minimum=1, maximum=10**12)
    batch_size: int = setting(64, "training examples per step", minimum=1)
    classes_per_batch: int | None = setting(
        None, "classes in a batch, with equally many examples each; null: any", minimum=2
    )
    class_sampling: Any = setting(
        None, "balanced, or the share of each class among the drawn examples, such as {0: 0.5}; null: as in the data"
    )
    class_weights: Any = setting(
        None, "balanced, or the weight of the loss of each class, such as {0: 2.0}; null: all equal"
    )
    accumulation_steps: int = setting(1, "micro batches per step; must divide batch_size", minimum=1)
    evaluation_batch_size: int = setting(256, "examples per evaluation step", minimum=1)
    evaluate_every_epochs: int = setting(1, "epochs between two evaluations on the validation split", minimum=1)
    report_every_steps: int | None = setting(None, "steps between two reports; null: about once an epoch", minimum=1)
    monitor: str = setting(
        "auto", "validation metric that selects the best step; auto: the accuracy if there is one, else the total loss"
    )
    monitor_mode: str = setting(
        "auto", "whether a larger or a smaller value is better; auto: by the name", choices=("auto", "max", "min")
    )
    placement: str = setting("auto", "where batches are made", choices=("auto", "device", "host"))
    precision: str = setting(
        "float32", "precision of computation; weights stay float32", choices=("float32", "float16", "bfloat16")
    )
    allow_slow_precision: bool = setting(False, "whether to allow a precision that is slower on this machine")
    compile: str = setting("auto", "whether the step is compiled by XLA", choices=("auto", "on", "off"))
    strategy: str = setting("none", "replicas that share every batch", choices=("none", "mirrored", "multi_worker"))
    replicas: int | None = setting(
        None, "number of replicas with strategy=mirrored; null: one per GPU; a divisor of batch_size", minimum=1
    )
    worker_timeout: float = setting(
        3600, "seconds that a worker waits for another one, with strategy=multi_worker; 0: forever", minimum=0
    )
    threads: int | None = setting(None, "CPU threads of TensorFlow; null: the number of cores", minimum=1, maximum=4096)
    max_seconds: float | None = setting(
        None, "wall time after which the run saves and ends; resume it later; null: no limit", minimum=0
    )


@dataclass
class TrainConfig:
    """Hold all settings of a run."""

    seed: int = setting(0, "seed of everything random", minimum=0, maximum=2**31 - 1)
    run_dir: str | None = setting(None, "directory of the run; null: runs/<recipe>/<date_time>")
    init_from: str | None = setting(
        None, "a run, or a .keras, .weights.h5 or .safetensors file, whose weights the networks start from"
    )
    resume: str | None = setting(None, "a run directory to resume")
    plugins: list[str] = field(default_factory=list, metadata={"help": "packages that a _target_ may name"})
    debug: bool = setting(False, "whether errors show their traceback")
    task: dict[str, Any] = section("builds the networks and the objectives", target=True)
    data: dict[str, Any] = section("opens the data", target=True)
    model: dict[str, Any] = section("builds the model", target=True)
    optimizer: dict[str, Any] = section("builds the optimizer", target=True)
    schedule: dict[str, Any] = section("builds the schedule of the learning rate", target=True)
    trainer: TrainerConfig = field(default_factory=TrainerConfig, metadata={"help": "how long, how often, where"})
    augment: dict[str, Any] = section("augmentations of training examples by name; null removes one")
    hooks: dict[str, Any] = section("hooks by name; null removes one")


def children(node: Any) -> dict[str, Any]:
    """Return the values of a mapping by name, or those of a list by index from "0"; empty for other values."""
    if isinstance(node, Mapping):
        return {str(name): value for name, value in node.items()}
    return {str(place): value for place, value in enumerate(node)} if isinstance(node, list) else {}


def follow(node: Any, key: str) -> tuple[list[tuple[str, Any]], str | None]:
    """Follow a dotted key as far as it exists; return the (name, node) pairs on it, and the rest of the key or None."""
    passed: list[tuple[str, Any]] = []
    rest: str | None = key
    while rest is not None:
        named = children(node)  # a name may itself contain dots, such as the pattern "dense_.*"
        name = max((each for each in named if f"{rest}.".startswith(f"{each}.")), key=len, default=None)
        if name is None:
            break
        node = named[name]
        passed.append((name, node))
        rest = None if name == rest else rest[len(name) + 1 :]
    return passed, rest


def leaves(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each leaf of nested mappings with its dotted key; a list or an empty mapping is a leaf."""
    if isinstance(node, Mapping) and node:
        for name, value in node.items():
            yield from leaves(value, f"{key}.{name}" if key else str(name))
    else:
        yield key, node


def walk(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield a node and all nodes inside it, including mappings and lists, each with its key relative to the first."""
    yield key, node
    for name, child in children(node).items():
        yield from walk(child, f"{key}.{name}" if key else name)


def lookup(node: Any, key: str) -> Any:
    """Return the value at a dotted key, or None if there is none."""
    passed, rest = follow(node, key)
    return passed[-1][1] if rest is None else None


def is_part(key: str) -> bool:
    """Return whether a key is that of a named part, such as "hooks.prune"."""
    section, _, name = key.partition(".")
    return section in NAMED and bool(name) and "." not in name


REFERENCE = re.compile(r"(?<!\\)(?:\\\\)*\$\{")
MISSING = "???"  # placeholder in a config file for a value that the user must give
NAMES = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    list: "a list",
    dict: "a mapping",
    type(None): "null",
}


def fits(value: Any, annotation: Any) -> bool:
    """Return whether a config value matches an annotation; annotations that are not handled here match any value."""
    origin, arguments = get_origin(annotation) or annotation, get_args(annotation)
    if origin in (Union, types.UnionType):
        return any(fits(value, argument) for argument in arguments)
    if origin is Literal:
        return any(value == argument and type(value) is type(argument) for argument in arguments)
    if annotation is None or annotation is type(None):
        return value is None
    if origin is bool or origin is str:
        return isinstance(value, origin)
    if origin is int or origin is float:
        return isinstance(value, int | origin) and not isinstance(value, bool)
    if origin in (list, tuple, set, frozenset, Sequence):
        return isinstance(value, list | tuple) and _items_fit(value, origin, arguments)
    if origin in (dict, Mapping):
        return isinstance(value, Mapping) and (not arguments or all(fits(v, arguments[1]) for v in value.values()))
    return True


def _items_fit(value: list[Any] | tuple[Any, ...], origin: Any, arguments: tuple[Any, ...]) -> bool:
    if origin is tuple and arguments and arguments[-1] is not Ellipsis:
        return len(value) == len(arguments) and all(map(fits, value, arguments))
    return not arguments or all(fits(item, arguments[0]) for item in value)


def describe(annotation: Any) -> str:
    """Return an annotation in words, such as "a whole number or null"."""
    origin, arguments = get_origin(annotation) or annotation, get_args(annotation)
    if origin in (Union, types.UnionType):
        ordered = sorted(arguments, key=lambda argument: argument is type(None))
        return " or ".join(dict.fromkeys(describe(argument) for argument in ordered))
    if origin is Literal:
        return "one of " + ", ".join(map(show, arguments))
    if origin in (list, tuple, set, frozenset, Sequence):
        each = [describe(argument) for argument in arguments if argument is not Ellipsis and argument is not Any]
        return f"a list, each {each[0]}" if each else "a list"
    if origin in (dict, Mapping):
        return "a mapping"
    return NAMES.get(origin, getattr(origin, "__name__", str(origin)))


def like(default: Any) -> Any:
    """Return an annotation for the values that may replace a default without an annotation."""
    if isinstance(default, bool):
        return bool | None
    if isinstance(default, int | float):  # the default does not show whether the number must be whole
        return float | None
    if isinstance(default, str) and default != MISSING:
        return str | float | list | dict | None
    return list | str | None if isinstance(default, list) else Any


def is_interpolation(value: Any) -> bool:
    """Return whether a value refers to another one, such as "${trainer.epochs}", without a backslash before it."""
    return isinstance(value, str) and REFERENCE.search(value) is not None


def validate(config: Mapping[str, Any]) -> None:
    """Check the values of a composed config; its names and types have been checked before."""
    trainer = config["trainer"]
    check_fields(TrainConfig, config, "")
    check_fields(TrainerConfig, trainer, "trainer.")
    _check_duration(trainer["epochs"], trainer["steps"])
    _check_class_settings(trainer)
    _check_replicas(trainer["strategy"], trainer["replicas"])
    _check_batch_parts(trainer)
    _check_optimizer(config["optimizer"])
    _check_plugins(config["plugins"])
    for section in NAMED:
        for name, part in config[section].items():
            if part is not None:
                _check_target(f"{section}.{name}", part)


def check_fields(schema: type, values: Mapping[str, Any], prefix: str) -> None:
    """Refuse values outside the limits of their settings."""
    for each in dataclasses.fields(schema):
        value, key = values[each.name], prefix + each.name
        if each.metadata.get("target"):
            _check_target(key, value)
        elif value is not None:
            _check_limits(key, value, each.metadata)


def _check_limits(key: str, value: Any, limits: Mapping[str, Any]) -> None:
    if isinstance(value, float):
        check_number(key, value, limits.get("minimum", -math.inf))
    elif "minimum" in limits:
        check_integer(key, value, limits["minimum"], limits.get("maximum"))
    elif "choices" in limits:
        check_choice(key, value, limits["choices"])
    elif value == "":
        raise UserError(f"{key} is empty. Expected a text; to leave it out, write {key}=null.")


def _check_target(key: str, part: Any) -> None:
    target = part.get(TARGET) if isinstance(part, Mapping) else None
    if not isinstance(target, str) or not target:
        without = f", or {key}=null to leave it out" if is_part(key) else ""
        raise UserError(f"{key} has no {TARGET}. Expected {key}.{TARGET}=<import path of what it builds>{without}.")


def _check_duration(epochs: int | None, steps: int | None) -> None:
    if epochs is not None and steps is not None:
        raise UserError(
            f"trainer.epochs={epochs} and trainer.steps={steps} are both set. "
            "Expected exactly one: add trainer.epochs=null or trainer.steps=null."
        )
    if epochs is None and steps is None:
        raise UserError("Neither trainer.epochs nor trainer.steps is set. Expected one, such as trainer.epochs=20.")


def _check_class_settings(trainer: Mapping[str, Any]) -> None:
    _check_numbers("class_weights", trainer["class_weights"], "a weight of at least 0, such as {0:2.0}", math.inf)
    _check_numbers("class_sampling", trainer["class_sampling"], "a share above 0 and below 1, such as {0:0.5}", 1.0)
    given = [key for key in ("class_sampling", "classes_per_batch") if trainer[key] is not None]
    if len(given) > 1:
        raise UserError(f"trainer.{given[0]} and {given[1]} both say which classes a batch holds. Expected one.")
    if given and trainer["class_weights"] == BALANCED:
        raise UserError(
            f"trainer.class_weights=balanced received with trainer.{given[0]}, which changes how often classes are "
            "drawn: the weights would correct it a second time. Expected one of them, or weights by class."
        )


def _check_numbers(name: str, setting: Any, expected: str, limit: float) -> None:
    """Check a setting that is null, "balanced" or a mapping from classes to numbers."""
    if setting is None or setting == BALANCED:
        return
    if not isinstance(setting, Mapping) or not setting:
        hint = did_you_mean(setting, (BALANCED,)) if isinstance(setting, str) else ""
        raise UserError(
            f"trainer.{name}={show(setting)} received.{hint} Expected null, {BALANCED}, or for each class {expected}. "
            "A class's name goes without quotes; for one with letters beyond ASCII, give its number."
        )
    for label, value in setting.items():
        within = fits(value, float) and 0 <= value < limit and (value > 0 or limit == math.inf)
        if not within:
            raise UserError(f"trainer.{name}={{{label}:{show(value)}}} received. Expected {expected}.")


def _check_replicas(strategy: str, replicas: int | None) -> None:
    if replicas is not None and strategy != "mirrored":
        raise UserError(
            f"trainer.replicas={replicas} received with trainer.strategy={strategy}. Expected trainer.replicas=null, "
            "or trainer.strategy=mirrored. Workers have a replica on each of their GPUs, or one on their CPU."
        )


def _check_batch_parts(trainer: Mapping[str, Any]) -> None:
    """Check that a batch divides evenly into classes, micro batches and replicas, where their numbers are given."""
    size, steps, classes = (trainer[key] for key in ("batch_size", "accumulation_steps", "classes_per_batch"))
    replicas = trainer["replicas"] or 1
    times = f" times trainer.accumulation_steps={steps}" if steps > 1 else ""
    for received, parts, fewer in (
        (f"trainer.classes_per_batch={classes}", classes or 1, "classes"),
        (f"trainer.accumulation_steps={steps}", steps, "steps"),
        (f"trainer.replicas={replicas}{times}", replicas * steps, "replicas"),
    ):
        check_parts(size, parts, received, fewer)
    check_class_parts(classes, steps, f"trainer.accumulation_steps={steps}", "steps")
    check_class_parts(classes, replicas * steps, f"trainer.replicas={replicas}{times}", "replicas")


def check_parts(size: int, parts: int, received: str, fewer: str) -> None:
    """Refuse a batch size that does not divide into equal parts, and name the nearest sizes that do."""
    if size % parts:
        lower = size - size % parts
        sizes = " or ".join(f"trainer.batch_size={each}" for each in (lower, lower + parts) if each)
        raise UserError(
            f"trainer.batch_size={size} cannot be cut into equal parts for {received}. Expected {sizes}, or another "
            f"number of {fewer}."
        )


def check_class_parts(classes: int | None, parts: int, received: str, fewer: str) -> None:
    """Refuse parts of a batch with fractions of classes, or with a single class, which gives no pair of two classes."""
    if parts > 1 and classes is not None and (classes % parts or classes < 2 * parts):
        raise UserError(
            f"{received} received with trainer.classes_per_batch={classes}. Expected whole classes, and at least two "
            f"of them, in each part of a batch: use fewer {fewer}, or trainer.classes_per_batch={2 * parts} or another "
            f"multiple of {parts}."
        )


def _check_optimizer(optimizer: Mapping[str, Any]) -> None:
    check_number("optimizer.learning_rate", optimizer.get("learning_rate"), 0, above_minimum=True)
    if (steps := optimizer.get("gradient_accumulation_steps")) is not None:
        raise UserError(
            f"optimizer.gradient_accumulation_steps={show(steps)} received: hooks would update in every step, but the "
            f"optimizer would not. Use trainer.accumulation_steps={show(steps)} instead, and set trainer.batch_size to "
            "the whole batch."
        )


def _check_plugins(plugins: list[str]) -> None:
    for name in plugins:
        if name.partition(".")[0] in sys.stdlib_module_names:
            raise UserError(f"plugins holds '{name}', a module of Python itself. Expected a package of your own.")
