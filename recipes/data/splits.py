"""Checked targets of a user's data, and its rows as training, validation and test examples."""

from __future__ import annotations

import warnings
from collections.abc import Container, Mapping, Sequence
from typing import Any

import numpy as np

from hookline.trainer.errors import UserError, check_choice, is_whole_number
from hookline.trainer.input.data import Data, Source, Split, check_finite, check_labels, check_lengths
from hookline.trainer.input.preparation import Preparation
from hookline.trainer.input.split import split_indices

MOST_CLASSES = 2**31
TRAIN = "train"
PARTS = (TRAIN, "validation", "test")
SPELLINGS = {TRAIN: (TRAIN,), "validation": ("validation", "val", "valid"), "test": ("test",)}
SPLITS = ("auto", "stratified", "random", "group", "hash")
NEEDS = {"group": "groups", "hash": "keys"}  # the column that a way to split needs


def read_targets(found: Mapping[str, np.ndarray], classes: int | None) -> tuple[dict[str, np.ndarray], int]:
    """Return the targets of each part, by its name in messages, and the number of classes.

    Integers [size] or [size, 1] become labels, int64 [size]. Other numbers [size, ...], or any if `classes` is 0,
    become targets without classes, float32 or, for integers, int64; the number of classes is then 0.
    """
    labeled = classes != 0 and (classes is not None or all(are_labels(each) for each in found.values()))
    if labeled:
        labels = {where: as_labels(each, where) for where, each in found.items()}
        return labels, count_classes(labels, classes)
    targets = {where: as_numbers(each, where) for where, each in found.items()}
    first = next(iter(targets.values()))
    for where, each in targets.items():
        if each.shape[1:] != first.shape[1:] or each.dtype != first.dtype:
            raise UserError(
                f"{where}: targets {each.dtype} of shape {list(each.shape[1:])}; expected {first.dtype} of shape "
                f"{list(first.shape[1:])}, as in {next(iter(targets))}. Convert them."
            )
    return targets, 0


def are_labels(targets: np.ndarray) -> bool:
    """Return whether targets can be labels: integers [size] or [size, 1]."""
    return targets.dtype.kind in "iu" and (targets.ndim == 1 or (targets.ndim == 2 and targets.shape[1] == 1))


def as_numbers(targets: np.ndarray, where: str) -> np.ndarray:
    """Return targets [size, ...] for a loss: float32, or int64 for integers."""
    check_lengths(targets, targets, where)
    if targets.dtype.kind not in "biuf":
        raise UserError(f"{where}: targets of dtype {targets.dtype}; expected numbers. Number the classes.")
    if targets.dtype.kind == "f":
        check_finite(targets, where)
    return targets.astype(np.float32 if targets.dtype.kind == "f" else np.int64)


def as_labels(targets: np.ndarray, where: str) -> np.ndarray:
    """Return the class of each example, int64 [size], from integers [size] or [size, 1]."""
    check_lengths(targets, targets, where)
    if not are_labels(targets):
        raise UserError(
            f"{where}: labels of dtype {targets.dtype} {list(targets.shape)}; expected integers [size], not "
            "one-hot rows or names."
        )
    return targets.reshape(-1).astype(np.int64)


def count_classes(labels: Mapping[str, np.ndarray], classes: int | None) -> int:
    """Return the number of classes, as given or the largest label plus one; check every label."""
    if classes is not None and (not is_whole_number(classes) or classes < 2):
        raise UserError(f"data.classes={classes} received. Expected 2 or more, null to count, or 0 for other targets.")
    for where, part in labels.items():
        if classes is None and part.dtype.kind == "i" and part.size and part.min() < 0:
            raise UserError(
                f"{where}: a label is {part.min()}; expected classes from 0 on. Number them, or set data.classes=0 "
                "where they are not classes."
            )
        check_labels(part, MOST_CLASSES if classes is None else classes, where)
    if classes is not None:
        return classes
    largest, where = max((int(part.max()), where) for where, part in labels.items())
    size = sum(len(part) for part in labels.values())
    if largest >= size:
        raise UserError(
            f"{where}: a label is {largest}, and there are {size} examples; expected classes from 0 on. Number them, "
            "set data.classes, or data.classes=0 where they are not classes."
        )
    if not largest:
        raise UserError(f"{where}: all labels are 0; expected 2 classes or more. Fix the labels, or set data.classes.")
    return largest + 1


def check_every_class(
    labels: Mapping[str, np.ndarray], classes: int, names: Sequence[str], *, remedy: str | None = None
) -> None:
    """Warn about classes missing from a split; refuse the training split in that case if there is a `remedy`."""
    for split, found in labels.items():
        lacking = np.flatnonzero(np.bincount(found, minlength=classes) == 0)
        if not len(lacking):
            continue
        first = names[lacking[0]] if len(names) else lacking[0]
        message = f"{len(lacking)} of {classes} classes have no {split} example, the first is '{first}'"
        if split == TRAIN and remedy is not None:
            raise UserError(f"{message}; expected one or more of each. {remedy}")
        effect = "no network can learn them" if split == TRAIN else f"the {split} metrics say nothing about it"
        warnings.warn(f"{message}: {effect}. Check the labels.", stacklevel=4)


def check_split(split: str, **options: tuple[str, object]) -> None:
    """Check `split`, and that options, each as (split that needs it, value), are given for their split only."""
    check_choice("data.split", split, SPLITS)
    for option, (by, value) in options.items():
        if (split == by) == (value is None):
            raise UserError(
                f"data.split={split} received with data.{option}={'null' if value is None else value}. Expected "
                f"data.{option} with data.split={by}, and only there."
            )


def hold_out(
    size: int,
    labels: np.ndarray | None,
    options: Mapping[str, Any],
    present: Container[str],
    *,
    groups: np.ndarray | None,
    keys: np.ndarray | None,
) -> dict[str, np.ndarray]:
    """Return rows by part: "train", and the parts not in `present`, held out with the shares in `options`."""
    split, seed = options["split"], options["seed"]
    held_out = {part: options[part] for part in PARTS[1:] if part not in present}
    if not held_out:
        return {TRAIN: np.arange(size, dtype=np.int64)}
    if split in NEEDS and (groups if split == "group" else keys) is None:
        name = NEEDS[split]
        raise UserError(
            f"data.split={split} needs {name}. Set data.{name} to an array, or add an attribute {name} to your source."
        )
    if split == "group":
        return split_indices(size, held_out, seed, labels, groups=groups)
    if split == "hash":
        return split_indices(size, held_out, seed, keys=keys)
    if split == "stratified" and labels is None:
        raise UserError("data.split=stratified needs classes, and the data has none. Set data.split=random.")
    return split_indices(size, held_out, seed, None if split == "random" else labels)  # "auto": stratified if labeled


def complete(
    parts: Mapping[str, np.ndarray],
    labels: np.ndarray,
    options: Mapping[str, Any],
    *,
    groups: np.ndarray | None,
    keys: np.ndarray,
) -> dict[str, np.ndarray]:
    """Return the rows of all parts of one source; missing parts are taken from the training rows."""
    train = parts[TRAIN]
    found = hold_out(
        len(train),
        labels[train],
        {**options, **{name: options[f"{name}_share"] for name in PARTS[1:]}},
        parts,
        groups=None if groups is None else groups[train],
        keys=keys[train],
    )
    taken = {name: train[rows] for name, rows in found.items()}
    whole = {name: taken[name] if name in taken else parts[name] for name in PARTS}
    seen: dict[object, str] = {}  # a group may be in two parts if files or folders define some of them
    for name, rows in whole.items():
        for group in () if groups is None else np.unique(groups[rows]).tolist():
            if group in seen:
                raise UserError(f"Group '{group}' is in {seen[group]} and in {name}. Move its examples together.")
            seen[group] = name
    return whole


def data_of_parts(
    name: str,
    sources: Mapping[str, Source],
    rows: Mapping[str, np.ndarray],
    *,
    preparation: Preparation | Mapping[str, Preparation],
    classes: int,
    class_names: Sequence[str],
) -> Data:
    """Return `rows` of the training source and all rows of the others; warn about classes without training rows."""
    others = {part: np.arange(source.size, dtype=np.int64) for part, source in sources.items() if part != TRAIN}
    splits = {part: Split(part, sources.get(part, sources[TRAIN]), own) for part, own in {**rows, **others}.items()}
    one = preparation if isinstance(preparation, Preparation) else None
    data = Data(
        name,
        **splits,
        input_shape=one.shape if one else (),
        classes=classes,
        class_names=tuple(class_names),
        preparation=one,
        preparations={} if one else preparation,
    )
    if classes:
        check_every_class({TRAIN: data.train.labels}, classes, data.class_names)
    return data
