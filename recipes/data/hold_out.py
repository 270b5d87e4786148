"""Hold examples out for validation and test."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hookline.trainer.errors import UserError, unknown_name
from hookline.trainer.input.checks import check_labels
from hookline.trainer.input.data import Data, Split
from hookline.trainer.input.preparation import Preparation
from hookline.trainer.input.source import Source
from hookline.trainer.input.split import split_indices


def check_group_option(split: str, option: str, value: object) -> None:
    """Check that the option is given if the way to split needs it, and only then."""
    if split == "group" and value is None:
        raise UserError(f"Received data.split=group and data.{option}=null; expected both. Set it.")
    if split != "group" and value is not None:
        raise UserError(
            f"Received data.{option} with data.split={split}, where it counts for nothing; expected data.split=group, "
            f"or data.{option}=null."
        )


def check_groups(parts: Mapping[str, np.ndarray], groups: np.ndarray) -> None:
    """Check that no group is in two parts, which can happen if files or folders define some of them."""
    seen: dict[object, str] = {}
    for name, rows in parts.items():
        for group in np.unique(groups[rows]).tolist():
            if group in seen:
                raise UserError(
                    f"Group '{group}' is in {seen[group]} and in {name}; expected it in one part. Move its examples "
                    "together, or let data.split=group make all parts."
                )
            seen[group] = name


SPLITS = ("stratified", "random", "group", "hash")
NEEDS = {"group": "groups", "hash": "keys"}
"""The columns that identify examples, by the way to split that needs them."""
TRAIN = "train"
MOST_CLASSES = 2**31

Column = Callable[[], np.ndarray | None]


def hold_out(
    labels: np.ndarray,
    held_out: Mapping[str, float | int],
    *,
    split: str,
    seed: int,
    groups: Column = lambda: None,
    keys: Column = lambda: None,
    mend: str = "",
) -> dict[str, np.ndarray]:
    """Return rows by part: "train", and those that are held out."""
    check_split(split)
    if not held_out:
        return {TRAIN: np.arange(len(labels), dtype=np.int64)}
    if split in NEEDS:
        name = NEEDS[split]
        found = groups() if split == "group" else keys()
        if found is None:
            raise UserError(f"data.split={split} needs {name}; {mend.format(name=name)}")
        if split == "group":
            return split_indices(len(labels), held_out, seed, labels, groups=found)
        return split_indices(len(labels), held_out, seed, keys=found)
    return split_indices(len(labels), held_out, seed, labels if split == "stratified" else None)


def data_of_parts(
    name: str,
    sources: Mapping[str, Source],
    rows: Mapping[str, np.ndarray],
    *,
    preparation: Preparation,
    classes: int,
    class_names: Sequence[str],
) -> Data:
    """Return the three splits of a set whose parts may have sources of their own; warn of classes without training."""
    splits = {part: Split(part, sources[TRAIN], indices) for part, indices in rows.items()}
    for part, source in sources.items():
        if part != TRAIN:
            splits[part] = Split(part, source, np.arange(source.size, dtype=np.int64))
    data = Data(
        name,
        **splits,
        input_shape=preparation.shape,
        classes=classes,
        class_names=tuple(class_names),
        preparation=preparation,
    )
    _warn_of_untrained(sources[TRAIN].labels[rows[TRAIN]], data)
    return data


def check_split(split: str) -> None:
    """Check the name of a way to split."""
    if split not in SPLITS:
        raise unknown_name("data.split", split, SPLITS)


def count_classes(labels: Mapping[str, np.ndarray], classes: int | None) -> int:
    """Return the number of classes, as given or the largest label plus one; check every label."""
    if classes is not None and classes < 2:
        raise UserError(f"Received data.classes={classes}; expected 2 or more, or null to count them.")
    for where, part in labels.items():
        check_labels(part, MOST_CLASSES if classes is None else classes, where)
    if classes is not None:
        return classes
    largest, where = max((int(part.max()), where) for where, part in labels.items())
    size = sum(len(part) for part in labels.values())
    if largest >= size:
        raise UserError(
            f"{where}: a label is {largest}, and there are {size} examples; expected classes from 0 on. Number them, "
            "or set data.classes."
        )
    if not largest:
        raise UserError(f"{where}: all labels are 0; expected 2 classes or more. Fix the labels, or set data.classes.")
    return largest + 1


def _warn_of_untrained(labels: np.ndarray, data: Data) -> None:
    lacking = np.flatnonzero(np.bincount(labels, minlength=data.classes) == 0)
    if len(lacking):
        first = f"'{data.class_names[lacking[0]]}'" if data.class_names else int(lacking[0])
        warnings.warn(
            f"{len(lacking)} of {data.classes} classes have no training example, the first is {first}: no network can "
            "learn them. Check the labels, or data.classes.",
            stacklevel=4,
        )
