"""The data of a run: sources that return rows by index, disjoint splits, and checks of the examples."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from hookline.trainer.errors import UserError
from hookline.trainer.input.preparation import Preparation
from hookline.trainer.objective import Batch

HOST = "CPU:0"
"""The device that prepares input that is not held on an accelerator."""


class Source(Protocol):
    """Protocol of a data source, which returns examples by row."""

    @property
    def size(self) -> int: ...

    @property
    def bytes(self) -> int: ...

    @property
    def labels(self) -> np.ndarray:
        """Return the class of every example, int64 [size], in row order and without creating any input."""

    @property
    def host_only(self) -> bool:
        """Return whether `gather` runs Python or reads files, so that batches can only be created on the host."""

    def gather(self, indices: tf.Tensor) -> Batch:
        """Return the examples of rows as a batch.

        Pure: the same rows give bit-identical results eagerly, in `tf.data` and in a traced loop. Made of TensorFlow
        ops, which may call Python or read files only if `host_only` is True.
        """

    def on_accelerator(self) -> Source:
        """Return this source with its examples in the accelerator's memory; itself if there is no accelerator."""


def labels_of(targets: Any) -> np.ndarray:
    """Return targets as class labels, int64 [size]; raise an error if they are not integers [size]."""
    if not isinstance(targets, tf.Tensor) or targets.shape.rank != 1 or not targets.dtype.is_integer:
        several = "none" if targets is None else "several"
        found = f"{targets.dtype.name} of shape {list(targets.shape)}" if isinstance(targets, tf.Tensor) else several
        raise UserError(f"Received targets: {found}; expected integers [size]. Give the class of each row.")
    return np.array(targets.numpy(), np.int64)


class ArraySource:
    """Data source for arrays in memory.

    Several inputs or targets are nested in dicts or lists, and batches have the same structure. The arrays keep their
    own dtype: images stay uint8, and `transform` casts only the rows of a batch. They are converted to eager tensors
    once, here; a traced function captures them as inputs, so no graph holds a copy as a constant.
    """

    def __init__(self, arrays: Mapping[str, Any], transform: Callable[[Batch], Batch]) -> None:
        lengths = [len(array) for array in tf.nest.flatten(arrays)]
        if len(set(lengths)) != 1 or not all(lengths):
            named = {name: tf.nest.map_structure(len, each) for name, each in arrays.items()}
            found = ", ".join(f"{name}: {length}" for name, length in named.items()) or "no array"
            raise UserError(f"Received arrays of lengths {found}; expected one equal, positive length. Fix the data.")
        # A source may be created while a function is being traced; its tensors must outlive that trace.
        with tf.init_scope(), tf.device(HOST):
            self._tensors = tf.nest.map_structure(tf.convert_to_tensor, dict(arrays))
        self._transform = transform
        self._device: str | None = HOST
        self._accelerated: ArraySource | None = None

    @property
    def size(self) -> int:
        return int(tf.nest.flatten(self._tensors)[0].shape[0])

    @property
    def bytes(self) -> int:
        return sum(each.shape.num_elements() * each.dtype.size for each in tf.nest.flatten(self._tensors))

    @property
    def labels(self) -> np.ndarray:
        return labels_of(self._tensors.get("targets"))

    @property
    def host_only(self) -> bool:
        return False

    def gather(self, indices: tf.Tensor) -> Batch:
        # Arrays on the host are gathered there: only the batch is copied to the accelerator, not the arrays.
        with tf.device(self._device):
            rows = tf.nest.map_structure(lambda tensor: tf.gather(tensor, indices), self._tensors)
        return self._transform(rows)

    def on_accelerator(self) -> ArraySource:
        accelerators = tf.config.list_logical_devices("GPU")
        if not accelerators or self._device is None:
            return self
        if self._accelerated is None:  # all splits of a source share the copy
            copy = object.__new__(ArraySource)
            with tf.init_scope(), tf.device(accelerators[0].name):
                copy._tensors = tf.nest.map_structure(tf.identity, self._tensors)
            copy._transform, copy._device, copy._accelerated = self._transform, None, None
            self._accelerated = copy
        return self._accelerated


def check_examples(
    inputs: np.ndarray, targets: np.ndarray, *, input_shape: tuple[int, ...], classes: int, where: str
) -> None:
    """Check inputs and labels together."""
    check_lengths(inputs, targets, where)
    check_shape(inputs, input_shape, where)
    check_finite(inputs, where)
    check_labels(targets, classes, where)


def check_lengths(inputs: np.ndarray, targets: np.ndarray, where: str) -> None:
    """Check that there is at least one example, and one label for each."""
    sizes = [array.shape[0] if array.ndim else 0 for array in (inputs, targets)]
    if sizes[0] != sizes[1]:
        raise UserError(f"{where}: {sizes[0]} inputs but {sizes[1]} labels; expected one label for each input.")
    if not sizes[0]:
        raise UserError(f"{where}: no examples; expected at least one. Give a file that contains some.")


def check_shape(inputs: np.ndarray, input_shape: tuple[int, ...], where: str) -> None:
    """Check the shape of one input."""
    if inputs.shape[1:] != tuple(input_shape):
        raise UserError(f"{where}: inputs of shape {list(inputs.shape[1:])}; expected {list(input_shape)}.")


def check_finite(inputs: np.ndarray, where: str) -> None:
    """Check that no input holds NaN or infinity."""
    if inputs.dtype.kind not in "iuf":
        raise UserError(f"{where}: inputs of dtype {inputs.dtype}; expected real numbers. Convert them.")
    if inputs.dtype.kind != "f":
        return
    bad = ~np.isfinite(inputs)
    if count := int(np.count_nonzero(bad)):
        row = int(np.argmax(bad.reshape(len(inputs), -1).any(axis=1)))
        raise UserError(f"{where}: {count} values are NaN or infinite, the first in row {row}. Remove or fix them.")


def check_labels(targets: np.ndarray, classes: int, where: str, rows: np.ndarray | None = None) -> None:
    """Check that labels are integers within [0, classes)."""
    if targets.ndim != 1 or targets.dtype.kind not in "iu":
        raise UserError(
            f"{where}: labels of dtype {targets.dtype} and shape {list(targets.shape)}; expected integers [size]. "
            "Give class numbers, not one-hot rows or names."
        )
    bad = (targets < 0) | (targets >= classes)
    if bad.any():
        first = int(np.argmax(bad))
        row = first if rows is None else rows[first]
        raise UserError(
            f"{where}: {bad.sum()} labels lie outside 0..{classes - 1}, the first is {targets[first]} in row {row}."
        )


def check_weights(weights: np.ndarray, size: int, where: str) -> np.ndarray:
    """Check and return sample weights, real numbers [size] or [size, 1], as float32 [size]; see `check_some_weight`."""
    if weights.shape not in ((size,), (size, 1)) or weights.dtype.kind not in "biuf":
        raise UserError(f"{where}: {weights.dtype} {list(weights.shape)}; expected one number for each of {size} rows.")
    weights = weights.reshape(size).astype(np.float32)
    if len(bad := np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))):
        raise UserError(
            f"{where}: {len(bad)} weights are negative or not finite, the first is {weights[bad[0]]} in row {bad[0]}; "
            "expected 0 or more. Fix them, or leave these examples out."
        )
    return weights


def check_some_weight(weights: np.ndarray, rows: Mapping[str, np.ndarray], where: str) -> None:
    """Raise an error if all examples of a split (its rows by name) have weight 0: its metrics would be 0 / 0."""
    for part, own in rows.items():
        if not weights[own].any():
            raise UserError(f"{where}: all weights{part and ' of the split '}{part} are 0; expected one above 0.")


def as_pixels(inputs: np.ndarray, where: str) -> np.ndarray:
    """Return gray values of any dtype as uint8 without changing any value.

    Images that are already scaled would silently become almost black, so they raise an error.
    """
    low, high = inputs.min(), inputs.max()
    whole = inputs.dtype.kind in "iu" or bool(np.all(inputs == np.floor(inputs)))
    if low < 0 or high > 255 or high <= 1 or not whole:
        kind = "whole values" if whole else "values with fractions"
        raise UserError(f"{where}: {kind} within {low:g}..{high:g}; expected whole gray values 0..255, unscaled.")
    return inputs.astype(np.uint8)


@dataclass(frozen=True, eq=False)
class Split:
    """The rows of a source that form one split."""

    name: str  # "train", "validation" or "test"
    source: Source  # holds the examples
    indices: np.ndarray  # int64 [size], rows of the source, each at most once
    row_name: Callable[[int], str] | None = None  # returns a row's name, such as its file path; None: "row 17"

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
        """Return the name of an example, such as "row 17"."""
        row = int(self.indices[position])
        return f"row {row}" if self.row_name is None else self.row_name(row)


@dataclass(frozen=True, eq=False)
class Data:
    """The splits of a data set.

    Attributes:
        name: name of the data, such as "mnist".
        train: the split that the networks learn from.
        validation: the split for choosing settings and steps; None for a fit without one.
        test: the split evaluated once, at the end; None for a fit.
        input_shape: shape of one input, without the batch axis; () if an example has several inputs.
        classes: number of classes; labels lie in [0, classes). 0 if targets are not classes: labels are never read.
        class_names: name of each class, by label; empty if classes have no names.
        preparation: how a raw example becomes an input, for later predictions; None if unknown.
        preparations: preparation of each of several inputs, by name.
    """

    name: str
    train: Split
    validation: Split | None
    test: Split | None
    input_shape: tuple[int, ...]
    classes: int
    class_names: tuple[str, ...] = ()
    preparation: Preparation | None = None
    preparations: Any = field(default_factory=dict)  # Mapping[str, Preparation], but Any for callers with `**splits`

    def __post_init__(self) -> None:
        """Check the class names, that splits share no examples, and the label of every example.

        An unchecked label out of range would be an error on a CPU, zeros on a GPU, and another class under XLA.
        """
        names = self.class_names
        if names and (len(names) != self.classes or len(set(names)) != self.classes):
            remedy = "one for each" if self.classes else "data.class_names=null: its targets are not classes"
            found = f"{len(set(names))} different class names for {self.classes} classes"
            raise UserError(f"Data '{self.name}': {found}. Expected {remedy}.")
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
        """Return the `input_shape` argument of a model: the shape of one input, or a dict {name: shape} for several."""
        return {name: each.shape for name, each in self.preparations.items()} or self.input_shape

    @property
    def splits(self) -> tuple[Split, ...]:
        """Return the training split, followed by the validation and test splits that exist."""
        return (self.train, *(each for each in (self.validation, self.test) if each is not None))


def _named(split: Split) -> np.ndarray:
    """Return which rows of its source a split contains: bool [source.size]. A set of rows would need to be sorted."""
    named = np.zeros(split.source.size, bool)
    named[split.indices] = True
    return named
