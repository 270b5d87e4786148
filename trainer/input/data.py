"""The data of a run: disjoint splits of examples."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hookline.trainer.errors import UserError
from hookline.trainer.input.checks import check_labels
from hookline.trainer.input.preparation import Preparation
from hookline.trainer.input.source import Source


@dataclass(frozen=True, eq=False)
class Split:
    """Name the rows of a source that serve one purpose."""

    name: str  # "train", "validation" or "test"
    source: Source  # where the examples lie
    indices: np.ndarray  # int64 [size], rows of the source, each at most once
    row_name: Callable[[int], str] | None = None  # what a row is called, such as the path of its file; None: "row 17"

    def __post_init__(self) -> None:
        rows = self.indices
        if rows.dtype != np.int64 or rows.ndim != 1:
            raise UserError(f"Split '{self.name}': indices of {rows.dtype} {list(rows.shape)}; expected int64 [size].")
        if not rows.size:
            raise UserError(f"Split '{self.name}' is empty; expected at least one example. Give it a larger share.")
        if rows.min() < 0 or rows.max() >= self.source.size:
            raise UserError(
                f"Split '{self.name}': {rows.min()}..{rows.max()}; expected rows within 0..{self.source.size - 1}."
            )
        if repeated := rows.size - np.count_nonzero(_named(self)):
            raise UserError(f"Split '{self.name}' repeats {repeated} rows; expected each once. Remove the repeats.")

    @property
    def labels(self) -> np.ndarray:
        return self.source.labels[self.indices]

    @property
    def size(self) -> int:
        return int(self.indices.size)

    def name_of(self, position: int) -> str:
        """Return what an example is called, such as "row 17"."""
        row = int(self.indices[position])
        return f"row {row}" if self.row_name is None else self.row_name(row)


@dataclass(frozen=True, eq=False)
class Data:
    """Hold the three splits of a data set.

    Attributes:
        name: what the data is called, such as "mnist".
        train: what the networks learn from.
        validation: what decides between settings and steps.
        test: what is evaluated once, at the end.
        input_shape: shape of one input, without the batch; () where an example has several.
        classes: number of classes; labels lie in [0, classes). 0 if targets are not classes: nothing asks for labels.
        class_names: what each class is called, by label; empty if classes have no names.
        preparation: how a raw example becomes an input, for predictions later; None if it is not known.
        preparations: of several inputs, by name.
    """

    name: str
    train: Split
    validation: Split
    test: Split
    input_shape: tuple[int, ...]
    classes: int
    class_names: tuple[str, ...] = ()
    preparation: Preparation | None = None
    preparations: Any = field(default_factory=dict)  # Mapping[str, Preparation], which `**splits` would not fit

    def __post_init__(self) -> None:
        """Check that no example serves two purposes, the names of the classes, and the label of every example.

        Unchecked, a label out of range is an error on a CPU, zeros on a GPU, and another class under XLA.
        """
        names = self.class_names
        if names and (len(names) != self.classes or len(set(names)) != self.classes):
            raise UserError(f"Data '{self.name}': {len(set(names))} different class names for {self.classes} classes.")
        for first, second in itertools.combinations(self.splits, 2):
            if first.source is not second.source:
                continue
            if overlap := np.count_nonzero(_named(first)[second.indices]):
                raise UserError(
                    f"Splits '{first.name}' and '{second.name}' of data '{self.name}' share {overlap} examples."
                )
        for split in self.splits if self.classes else ():
            labels, where = split.source.labels, f"Data '{self.name}', {split.name}"
            if labels.shape != (split.source.size,):
                raise UserError(f"{where}: labels of shape {list(labels.shape)}; expected [{split.source.size}].")
            check_labels(labels[split.indices], self.classes, where, split.indices)

    @property
    def model_shape(self) -> Any:
        """Return what a model is given as `input_shape`: the shape of an input, or of several by name."""
        return {name: each.shape for name, each in self.preparations.items()} or self.input_shape

    @property
    def held_out(self) -> tuple[str, ...]:
        """Return the names of the splits that are evaluated; the others may be the training split itself."""
        return ("validation", "test")

    @property
    def splits(self) -> tuple[Split, ...]:
        """Return the training split and those that are evaluated."""
        return (self.train, *(each for each in (self.validation, self.test) if each.name in self.held_out))


def _named(split: Split) -> np.ndarray:
    """Return which rows of its source a split names: bool [source.size]. A set of the rows would need to sort them."""
    named = np.zeros(split.source.size, bool)
    named[split.indices] = True
    return named
