"""The parts that a config may name, and their kinds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any


def setting(default: Any, help_text: str, **limits: Any) -> Any:
    """Return a dataclass field with a help text and limits."""
    return field(default=default, metadata={"help": help_text, **limits})


def section(help_text: str, **limits: Any) -> Any:
    """Return a dataclass field for a free-form mapping: a `_target_` with its arguments, or several by name."""
    return field(default_factory=dict, metadata={"help": help_text, **limits})


BALANCED = "balanced"
"""In place of a number for each class: as makes up for their sizes."""
NAMED = {"hooks": "hook", "augment": "augmentation"}
"""Sections that hold parts by name (+hooks=<name> adds, hooks.<name>=null removes), and what a part of each is."""


@dataclass
class TrainerConfig:
    """Say how long, how often and where to train."""

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
    accumulation_steps: int = setting(
        1, "micro batches of a step, one after the other; a divisor of batch_size", minimum=1
    )
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
    """Hold everything that decides a run."""

    seed: int = setting(0, "everything random follows from it", minimum=0, maximum=2**31 - 1)
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
    """Return what a mapping holds by name, and what a list holds by place, from "0"; nothing for other values."""
    if isinstance(node, Mapping):
        return {str(name): value for name, value in node.items()}
    return {str(place): value for place, value in enumerate(node)} if isinstance(node, list) else {}


def follow(node: Any, key: str) -> tuple[list[tuple[str, Any]], str | None]:
    """Follow a key through plain values, as far as it goes.

    A name may hold dots itself, as the pattern "dense_.*" does: of several that fit, the longest counts.
    """
    passed: list[tuple[str, Any]] = []
    rest: str | None = key
    while rest is not None:
        named = children(node)
        name = max((each for each in named if f"{rest}.".startswith(f"{each}.")), key=len, default=None)
        if name is None:
            break
        node = named[name]
        passed.append((name, node))
        rest = None if name == rest else rest[len(name) + 1 :]
    return passed, rest


def leaves(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values that hold no further keys, each with its key."""
    if isinstance(node, Mapping) and node:
        for name, value in node.items():
            yield from leaves(value, f"{key}.{name}" if key else str(name))
    else:
        yield key, node


def lookup(node: Any, key: str) -> Any:
    """Return the value that a key leads to; None if it leads to none."""
    passed, rest = follow(node, key)
    return passed[-1][1] if rest is None else None


def is_part(key: str) -> bool:
    """Return whether a key is that of a part by name, such as "hooks.prune"."""
    section, _, name = key.partition(".")
    return section in NAMED and bool(name) and "." not in name
