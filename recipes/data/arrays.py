"""A user's own arrays."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from hookline.recipes.data.array_files import ArrayFiles, NpyRows, find_arrays, open_npy, warn_of_unread
from hookline.recipes.data.example_rows import INPUTS, TARGETS
from hookline.recipes.data.input_form import HostRows, check_rows, in_memory, input_form, is_held, transform_of
from hookline.recipes.data.splits import SPELLINGS, TRAIN, check_split, data_of_parts, hold_out, read_targets
from hookline.trainer.deferred import prechecked
from hookline.trainer.errors import UserError
from hookline.trainer.input.data import (
    ArraySource,
    Data,
    Source,
    check_lengths,
    check_shape,
    check_some_weight,
    check_weights,
)
from hookline.trainer.input.preparation import Preparation
from hookline.trainer.objective import SAMPLE_WEIGHTS, Batch

WEIGHTS = "sample_weight"  # base name of such an array, followed by "_train" and so on
LETTERS = {INPUTS: "x", TARGETS: "y"}
Columns = dict[str, str]
"""The array of each column: "inputs" or several "inputs/<name>", "targets" or "targets/<name>", "sample_weights"."""


def check_arrays(path: str, targets: str | None, split: str, groups: str | None, keys: str | None) -> None:
    """Check that the files exist, and the way to split; see `arrays`."""
    check_split(split, groups=("group", groups), keys=("hash", keys))
    find_arrays(path, targets)


@prechecked(check_arrays)
def arrays(
    *,
    path: str,
    targets: str | None = None,
    scale: str = "auto",
    channels: str = "auto",
    classes: int | None = None,
    class_names: list[str] | None = None,
    cache: str = "auto",
    validation: float | int = 0.1,
    test: float | int = 0.2,
    split: str = "auto",
    groups: str | None = None,
    keys: str | None = None,
    seed: int = 0,
) -> Data:
    """Return the examples of an npz file, of a folder of npy files, or of a pair of npy files.

    The arrays (in a folder, the files) are named x_train and y_train, and optionally x_validation, y_validation,
    x_test, y_test (x_val and x_valid are accepted, too); or inputs and targets. Missing parts are taken from the
    training examples.

    Inputs are integers or floats [n, features], [n, height, width], [n, height, width, channels] or of another shape.
    They must be finite, which is checked on loading, or on reading rows if they stay in their file. Targets are
    integers [n], the class of each example, or any other numbers [n, ...] for task=supervised. sample_weight_train
    (sample_weight_test and so on; sample_weight with inputs) is the weight of each example. Several inputs are named
    x_train_<name>, and several targets, for a network with several outputs, y_train_<name>; models take and return them
    by name.
    """
    options = dict(locals())
    files = find_arrays(path, targets)
    columns = _columns(files)
    warn_of_unread(files, [*(name for each in columns.values() for name in each.values()), groups, keys])
    read, count = _read_targets(files, columns, classes)
    train = next(iter(read[TRAIN].values()))
    rows = hold_out(
        len(train),
        train if count else None,
        options,
        columns,
        groups=None if groups is None else files.named(groups, "data.groups"),
        keys=None if keys is None else files.named(keys, "data.keys"),
    )
    for part, own in columns.items():
        if name := own.get(SAMPLE_WEIGHTS):
            size = len(next(iter(read[part].values())))
            read[part][SAMPLE_WEIGHTS] = check_weights(files.load(name), size, files.label(name))
            check_some_weight(read[part][SAMPLE_WEIGHTS], {"": np.arange(size)}, files.label(name))
    if name := columns[TRAIN].get(SAMPLE_WEIGHTS):
        check_some_weight(read[TRAIN][SAMPLE_WEIGHTS], rows, files.label(name))
    sources, forms = _sources(files, columns, read, options)
    made = {column.partition("/")[2]: form for column, form in forms.items()}
    one = made.get("", made)
    return data_of_parts(files.path.stem, sources, rows, preparation=one, classes=count, class_names=class_names or ())


def _columns(files: ArrayFiles) -> dict[str, Columns]:
    """Return the columns of every existing part; "train" first."""
    if {INPUTS, TARGETS} & files.sizes.keys():
        _require(files, INPUTS, TARGETS)
        return {TRAIN: {INPUTS: INPUTS, TARGETS: TARGETS} | _weights(files, WEIGHTS)}
    columns: dict[str, Columns] = {}
    for part, aliases in SPELLINGS.items():
        alias, own = next(((each, found) for each in aliases if (found := _called(files, each))), (part, {}))
        if not own and part != TRAIN:
            continue
        wanted = columns.get(TRAIN) or own
        for kind, letter in LETTERS.items():
            several = [column.partition("/")[2] for column in wanted if column.partition("/")[0] == kind]
            _require(files, *("_".join(filter(None, (letter, alias, name))) for name in several or [""]))
        columns[part] = own | _weights(files, f"{WEIGHTS}_{alias}")
    return columns


def _called(files: ArrayFiles, alias: str) -> Columns:
    """Return the inputs and targets of a part: x_train, or several as x_train_<name>."""
    found: Columns = {}
    for kind, letter in LETTERS.items():
        one = f"{letter}_{alias}"
        if one in files.sizes:
            found[kind] = one
        else:
            several = [name for name in files.sizes if name.startswith(f"{one}_")]
            found |= {f"{kind}/{name.removeprefix(f'{one}_')}": name for name in several}
    return found


def _weights(files: ArrayFiles, name: str) -> Columns:
    return {SAMPLE_WEIGHTS: name} if name in files.sizes else {}


def _require(files: ArrayFiles, *names: str) -> None:
    missing = [name for name in names if name not in files.sizes]
    if missing:
        raise UserError(
            f"'{files.path}' holds {', '.join(files.sizes) or 'no array'}; expected x_train and y_train (and x_test, "
            f"y_test, x_validation, y_validation if there are any), or inputs and targets. Add {missing[0]}."
        )


def _read_targets(
    files: ArrayFiles, columns: Mapping[str, Columns], classes: int | None
) -> tuple[dict[str, dict[str, np.ndarray]], int]:
    """Return the targets of each part by column, and the number of classes, 0 for several targets."""
    found: dict[str, dict[str, np.ndarray]] = {part: {} for part in columns}
    count = 0
    for column in columns[TRAIN]:
        if column.partition("/")[0] == TARGETS:
            own = {files.label(each[column]): files.load(each[column]) for each in columns.values()}
            read, count = read_targets(own, classes if column == TARGETS else 0)
            for part, values in zip(columns, read.values(), strict=True):
                found[part][column] = values
    return found, count


def _sources(
    files: ArrayFiles,
    columns: Mapping[str, Columns],
    read: Mapping[str, Mapping[str, np.ndarray]],
    options: Mapping[str, Any],
) -> tuple[dict[str, Source], dict[str, Preparation]]:
    """Return the source of every part, and the preparation of each input, the same in all parts."""
    several = any("/" in column for column in columns[TRAIN])
    if (files.is_npz or several) and options["cache"] == "none":
        what = "which has several inputs or targets" if several else "an npz, whose rows cannot be read one by one"
        raise UserError(
            f"data.cache=none received for '{files.path}', {what}; expected a folder of x_train.npy and "
            "y_train.npy, or data.cache=auto."
        )
    inputs = [column for column in columns[TRAIN] if column.partition("/")[0] == INPUTS]
    size = sum(files.sizes[own[column]] for own in columns.values() for column in inputs)
    held = is_held(options["cache"], size) or files.is_npz or several
    sources: dict[str, Source] = {}
    forms: dict[str, Preparation] = {}
    for part, own in columns.items():
        arrays = dict(read[part])
        for column in inputs:
            where, name = files.label(own[column]), own[column]
            stored = files.load(name) if held else open_npy(files.files[name])
            check_lengths(stored, next(iter(read[part].values())), where)
            form = input_form(stored.shape[1:], stored.dtype, options, where)
            check_shape(stored, forms.setdefault(column, form).raw_shape, where)
            if form != forms[column]:
                raise UserError(
                    f"{where}: inputs of dtype {stored.dtype} would be scaled differently from the training inputs; "
                    "expected one dtype. Convert them, or set data.scale."
                )
            if held:
                arrays[column] = in_memory(form, stored, where)
            else:
                sources[part] = _rows_of(NpyRows(files.files[name]), form, arrays)
        if held:
            sources[part] = ArraySource(arrays, partial(_named, forms) if several else transform_of(forms[INPUTS]))
    return sources, forms


def _named(forms: Mapping[str, Preparation], batch: Batch) -> Batch:
    """Return a batch with prepared inputs, and with several inputs or targets in dicts."""
    made: Batch = {INPUTS: {}, TARGETS: {}}
    for column, values in batch.items():
        kind, _, name = column.partition("/")
        if kind in (INPUTS, TARGETS):
            made[kind][name] = transform_of(forms[column])({INPUTS: values})[INPUTS] if column in forms else values
        else:
            made[column] = values
    return made | {kind: made[kind].get("", made[kind]) for kind in (INPUTS, TARGETS)}


def _rows_of(stored: NpyRows, form: Preparation, columns: dict[str, np.ndarray]) -> HostRows:
    targets = columns.pop(TARGETS)

    def read(rows: np.ndarray) -> dict[str, np.ndarray]:
        inputs = stored.read(rows)
        check_rows(form, inputs, rows, f"'{stored.path}'")
        return {INPUTS: inputs, **{name: column[rows] for name, column in columns.items()}}

    specs = {name: tf.TensorSpec([], column.dtype) for name, column in columns.items()}
    return HostRows(read, {INPUTS: tf.TensorSpec(form.raw_shape, stored.dtype), **specs}, targets, transform_of(form))
