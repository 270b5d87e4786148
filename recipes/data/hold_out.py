"""From parts that a set has to the three splits: what it has not is held out of its training examples."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from trainer.errors import UserError, unknown_name
from trainer.inference.preparation import Preparation
from trainer.input.checks import check_labels
from trainer.input.data import Data, Split
from trainer.input.source import Source
from trainer.input.split import split_indices

SPLITS = ("stratified", "random", "group", "hash")
NEEDS = {"group": "groups", "hash": "keys"}
"""What tells examples apart, by the way to split that needs it."""
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
    """Return rows by part: "train", and those that are held out.

    Args:
        labels: int64 [size].
        held_out: a share in (0, 1) or a number of examples by part; empty to train on all.
        split: "stratified" (each part has each class in its proportion), "random", "group" (examples of one group go
            together), or "hash" (a hash of an example's key decides, also when more arrive).
        seed: of the split.
        groups: gives the group of every row [size], or None where there are none; called for "group" only.
        keys: likewise what each row is called, for "hash".
        mend: how to give groups or keys, with {name} in it, for messages.

    Raises:
        UserError: an unknown way, groups or keys that are missing, or what `split_indices` refuses.
    """
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
    """Return the three splits of a set whose parts may have sources of their own; warn of classes without training.

    Args:
        name: of the data.
        sources: by part, "train" among them.
        rows: of the training source by split, "train" and what is held out; int64.
        preparation: of raw examples; its shape is that of one input.
        classes: number of classes.
        class_names: by label; empty for none.

    Raises:
        UserError: see `Data`.
    """
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
    """Check the name of a way to split.

    Args:
        split: what the user gave.

    Raises:
        UserError: an unknown way.
    """
    if split not in SPLITS:
        raise unknown_name("data.split", split, SPLITS)


def count_classes(labels: Mapping[str, np.ndarray], classes: int | None) -> int:
    """Return the number of classes, which was given or is the largest label and one; check every label.

    Args:
        labels: [n], by what messages call them.
        classes: that were given; None to infer it.

    Raises:
        UserError: fewer than 2 classes, or labels that are no class numbers.
    """
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
        raise UserError(f"{where}: all labels are 0; expected 2 classes or more. Mend the labels, or set data.classes.")
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
