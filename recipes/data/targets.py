"""Targets of a user's data: the class of each example, or anything else that a loss takes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import numpy as np

from hookline.trainer.errors import UserError, unknown_name
from hookline.trainer.input.checks import check_finite, check_labels, check_lengths, is_whole_number

MOST_CLASSES = 2**31


def read_targets(found: Mapping[str, np.ndarray], classes: int | None) -> tuple[dict[str, np.ndarray], int]:
    """Return the targets of each part, by what messages call it, and the number of classes.

    Integers [size] or [size, 1] are labels, int64 [size]. Other numbers [size, ...] are targets without classes, which
    are then 0: float32, or int64 where they are whole; so are all where `classes` is 0.
    """
    labelled = classes != 0 and (classes is not None or all(are_labels(each) for each in found.values()))
    if labelled:
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
    """Return targets [size, ...] as a loss takes them."""
    check_lengths(targets, targets, where)
    if targets.dtype.kind not in "biuf":
        raise UserError(
            f"{where}: targets of dtype {targets.dtype}; expected numbers: the class of each example, or what a loss "
            "of task=supervised takes."
        )
    if targets.dtype.kind == "f":
        check_finite(targets, where)
    return targets.astype(np.float32 if targets.dtype.kind == "f" else np.int64)


def as_labels(targets: np.ndarray, where: str) -> np.ndarray:
    """Return the class of each example, int64 [size], from integers [size] or [size, 1]."""
    if targets.ndim == 2 and targets.shape[1] == 1:
        targets = targets[:, 0]
    check_lengths(targets, targets, where)
    if targets.ndim != 1 or targets.dtype.kind not in "iu":
        raise UserError(
            f"{where}: labels of dtype {targets.dtype} and shape {list(targets.shape)}; expected integers [size], the "
            "number of a class for each example, not one-hot rows or names."
        )
    return targets.astype(np.int64)


def number_names(found: np.ndarray, names: Sequence[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the class of each example by the place of its name, and the names: those given, or all that occur."""
    known = tuple(names) or tuple(np.unique(found).tolist())
    place = {name: label for label, name in enumerate(known)}
    labels = np.array([place.get(name, -1) for name in found.tolist()], np.int64)
    if labels.min() < 0:
        raise unknown_name("class in the records", found[labels < 0][0], known)
    return labels, known


def count_classes(labels: Mapping[str, np.ndarray], classes: int | None) -> int:
    """Return the number of classes, as given or the largest label plus one; check every label."""
    if classes is not None and (not is_whole_number(classes) or classes < 2):
        raise UserError(
            f"Received data.classes={classes}; expected 2 or more, null to count them, or 0 for targets that are no "
            "classes."
        )
    for where, part in labels.items():
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
    """Report classes that a split, by its name, lacks; refuse that in training where there is a `remedy`."""
    for split, found in labels.items():
        lacking = np.flatnonzero(np.bincount(found, minlength=classes) == 0)
        if not len(lacking):
            continue
        first = names[lacking[0]] if len(names) else lacking[0]
        message = f"{len(lacking)} of {classes} classes have no {split} example, the first is '{first}'"
        if split == "train" and remedy is not None:
            raise UserError(f"{message}; expected one or more of each. {remedy}")
        effect = "no network can learn them" if split == "train" else f"the {split} metrics say nothing about it"
        warnings.warn(f"{message}: {effect}. Check the labels.", stacklevel=4)
