"""Hold examples out for validation and test."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from hookline.recipes.data.targets import check_every_class
from hookline.trainer.errors import UserError, unknown_name
from hookline.trainer.input.data import Data, Split
from hookline.trainer.input.preparation import Preparation
from hookline.trainer.input.source import Source
from hookline.trainer.input.split import split_indices

TRAIN = "train"
PARTS = (TRAIN, "validation", "test")
SPLITS = ("auto", "stratified", "random", "group", "hash")
NEEDS = {"group": "groups", "hash": "keys"}
"""The columns that identify examples, by the way to split that needs them."""

Column = Callable[[], np.ndarray | None]


def check_split(split: str) -> None:
    """Check the name of a way to split."""
    if split not in SPLITS:
        raise unknown_name("data.split", split, SPLITS)


def check_group_option(split: str, option: str, value: object) -> None:
    """Check that the option is given if the way to split needs it, and only then."""
    check_split(split)
    if (split == "group") == (value is None):
        needs = "Set both or none" if value is None else f"Set data.split=group, or data.{option}=null"
        raise UserError(
            f"Received data.split={split} and data.{option}={'null' if value is None else value}; expected a "
            f"{option} with data.split=group, and only there. {needs}."
        )


def hold_out(
    size: int,
    labels: np.ndarray | None,
    held_out: Mapping[str, float | int],
    *,
    split: str,
    seed: int,
    groups: Column = lambda: None,
    keys: Column = lambda: None,
    remedy: str = "",
) -> dict[str, np.ndarray]:
    """Return rows by part: "train", and those that are held out.

    A split of "auto" is stratified where there are labels, and random where targets are not classes.
    """
    check_split(split)
    if not held_out:
        return {TRAIN: np.arange(size, dtype=np.int64)}
    if split in NEEDS:
        name = NEEDS[split]
        found = groups() if split == "group" else keys()
        if found is None:
            raise UserError(f"data.split={split} needs {name}; {remedy.format(name=name)}")
        if split == "group":
            return split_indices(size, held_out, seed, labels, groups=found)
        return split_indices(size, held_out, seed, keys=found)
    if split == "stratified" and labels is None:
        raise UserError("data.split=stratified needs classes, and the data has none. Set data.split=random.")
    return split_indices(size, held_out, seed, None if split == "random" else labels)


def complete(
    parts: Mapping[str, np.ndarray],
    labels: np.ndarray,
    shares: Mapping[str, float | int],
    *,
    split: str,
    seed: int,
    groups: np.ndarray | None,
    keys: np.ndarray,
) -> dict[str, np.ndarray]:
    """Return the rows of all parts of one source: those that exist, and the others taken from the training rows."""
    train = parts[TRAIN]
    lacking = {name: share for name, share in shares.items() if name not in parts}
    found = hold_out(
        len(train),
        labels[train],
        lacking,
        split=split,
        seed=seed,
        groups=lambda: None if groups is None else groups[train],
        keys=lambda: keys[train],
    )
    taken = {name: train[rows] for name, rows in found.items()}
    whole = {name: taken[name] if name in taken else parts[name] for name in PARTS}
    if groups is not None:
        _check_groups(whole, groups)
    return whole


def _check_groups(parts: Mapping[str, np.ndarray], groups: np.ndarray) -> None:
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


def chosen_parts(what: str, given: Collection[str], parts: Sequence[str] | None) -> list[str]:
    """Return which of the splits of a set are used: those that `data.parts` names, or all that we know."""
    there = [part for part in PARTS if part in given]
    for part in parts or ():
        if part not in there:
            raise unknown_name("split in data.parts", part, there)
    chosen = there if parts is None else [part for part in there if part in parts]
    if TRAIN not in chosen:
        raise UserError(
            f"{what} is used with {', '.join(chosen) or 'none'} of its splits {', '.join(given)}; expected train among "
            "them. Choose another set, or fix data.parts."
        )
    return chosen


def splits_of(sources: Mapping[str, Source], rows: Mapping[str, np.ndarray]) -> dict[str, Split]:
    """Return splits: rows of the training source, and the whole of every other one."""
    splits = {part: Split(part, sources[TRAIN], indices) for part, indices in rows.items()}
    others = {part: source for part, source in sources.items() if part != TRAIN}
    return splits | {part: Split(part, each, np.arange(each.size, dtype=np.int64)) for part, each in others.items()}


def data_of_parts(
    name: str,
    sources: Mapping[str, Source],
    rows: Mapping[str, np.ndarray],
    *,
    preparation: Preparation | Mapping[str, Preparation],
    classes: int,
    class_names: Sequence[str],
) -> Data:
    """Return the three splits of a set whose parts may have sources of their own; warn of classes without training."""
    one = preparation if isinstance(preparation, Preparation) else None
    data = Data(
        name,
        **splits_of(sources, rows),
        input_shape=one.shape if one else (),
        classes=classes,
        class_names=tuple(class_names),
        preparation=one,
        preparations={} if isinstance(preparation, Preparation) else preparation,
    )
    if classes:
        check_every_class({TRAIN: data.train.labels}, classes, data.class_names)
    return data
