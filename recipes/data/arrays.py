"""A user's own arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from hookline.recipes.data.array_files import (
    INPUTS,
    TARGETS,
    ArrayFiles,
    NpyRows,
    find_arrays,
    open_npy,
    warn_of_unread,
)
from hookline.recipes.data.input_form import HostRows, InputForm, input_form, is_held
from hookline.recipes.data.splits import NEEDS, PARTS, check_split, data_of_parts, hold_out, read_targets
from hookline.trainer.deferred import prechecked
from hookline.trainer.errors import UserError
from hookline.trainer.input.checks import check_lengths, check_shape
from hookline.trainer.input.data import Data
from hookline.trainer.input.source import ArraySource, Source
from hookline.trainer.objective import SAMPLE_WEIGHTS, Batch

WEIGHTS = "sample_weight"
"""Base name of such an array, followed by "_train" and so on."""
REMEDY = "set data.{name} to the array that holds them."
ALIASES = {"train": ("train",), "validation": ("validation", "val", "valid"), "test": ("test",)}
ONE = ""
"""The name of the only input, and of the only target."""


@dataclass(frozen=True)
class _Names:
    """Names of a part's arrays, those of inputs and targets by what they are called."""

    inputs: Mapping[str, str]
    targets: Mapping[str, str]
    weights: str | None

    @property
    def all(self) -> list[str | None]:
        return [*self.inputs.values(), *self.targets.values(), self.weights]


def check_arrays(path: str, targets: str | None, split: str, groups: str | None, keys: str | None) -> None:
    """Check that the files are there, and the way to split; see `arrays`."""
    check_split(split)
    for (by, name), value in zip(NEEDS.items(), (groups, keys), strict=True):
        if value is not None and split != by:
            raise UserError(f"data.{name}={value} received with data.split={split}; expected data.split={by} with it.")
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
    """Return the examples of an npz file, of npy files in a folder, or of a pair of npy files.

    The arrays (in a folder: the files) are called x_train and y_train, and optionally x_validation, y_validation,
    x_test, y_test (x_val and x_valid are accepted, too); or inputs and targets. Parts without arrays of their own are
    taken from the training examples.

    Inputs are integers or floats [n, features], [n, height, width], [n, height, width, channels] or of another shape.
    In memory, all are checked to be finite; those that stay in their file are checked when they are read.
    Targets are integers [n], the class of each example, or any other numbers [n, ...] for task=supervised.
    sample_weight_train (sample_weight_test and so on; sample_weight beside inputs) says how much each example counts.
    Several inputs are called x_train_<name> each, and several targets, of a network with several outputs,
    y_train_<name>; models get and return them by name.

    The arguments are explained in `configs/data/arrays.yaml`.
    """
    options = dict(locals())
    files = find_arrays(path, targets)
    names = _names(files)
    warn_of_unread(files, [*(name for each in names.values() for name in each.all), groups, keys])
    targets_of, count = _read_all_targets(files, names, classes)
    lacking = {part: options[part] for part in PARTS[1:] if part not in names}
    columns = {option: _column(files, option, options[option]) for option in ("groups", "keys")}
    train = next(iter(targets_of["train"].values()))
    rows = hold_out(len(train), train if count else None, lacking, split=split, seed=seed, remedy=REMEDY, **columns)
    weights = {
        part: _read_weights(files, each.weights, len(next(iter(targets_of[part].values()))))
        for part, each in names.items()
        if each.weights
    }
    if "train" in weights:
        _check_shares(weights["train"], rows, files.label(names["train"].weights or ""))
    sources, forms = _sources(files, names, targets_of, weights, options)
    made = {name: form.preparation for name, form in forms.items()}
    one, called = made.get(ONE, made), tuple(class_names or ())
    return data_of_parts(files.path.stem, sources, rows, preparation=one, classes=count, class_names=called)


def _names(files: ArrayFiles) -> dict[str, _Names]:
    """Return the names of the arrays of every existing part; "train" first."""
    there = {name: name for name in files.sizes}
    if INPUTS in there or TARGETS in there:
        _require(files, INPUTS, TARGETS)
        return {"train": _Names({ONE: INPUTS}, {ONE: TARGETS}, there.get(WEIGHTS))}
    names: dict[str, _Names] = {}
    for part, alias in ((part, alias) for part, aliases in ALIASES.items() for alias in aliases):
        pair = _Names(_called("x", alias, files), _called("y", alias, files), there.get(f"{WEIGHTS}_{alias}"))
        if part != "train" and not pair.inputs and not pair.targets:
            continue
        if part in names:
            given = [next(iter(each.inputs.values()), alias) for each in (names[part], pair)]
            raise UserError(f"'{files.path}' holds {' and '.join(given)}; expected one of them.")
        first = names.get("train", pair)
        for kind, known in (("x", first.inputs), ("y", first.targets)):
            _require(files, *("_".join(filter(None, (kind, alias, name))) for name in known or (ONE,)))
        names[part] = pair
    return names


def _called(kind: str, part: str, files: ArrayFiles) -> dict[str, str]:
    """Return the inputs ("x") or targets ("y") of a part: x_train, or several as x_train_<name>."""
    one = f"{kind}_{part}"
    several = {name.removeprefix(f"{one}_"): name for name in files.sizes if name.startswith(f"{one}_")}
    return {ONE: one} if one in files.sizes else several


def _require(files: ArrayFiles, *names: str) -> None:
    missing = [name for name in names if name not in files.sizes]
    if missing:
        raise UserError(
            f"'{files.path}' holds {', '.join(files.sizes) or 'no array'}; expected x_train and y_train (and x_test, "
            f"y_test, x_validation, y_validation where there are such), or inputs and targets. Add {missing[0]}."
        )


def _read_all_targets(
    files: ArrayFiles, names: Mapping[str, _Names], classes: int | None
) -> tuple[dict[str, dict[str, np.ndarray]], int]:
    """Return the targets of each part by name, and the number of classes: 0 where there are several targets."""
    found: dict[str, dict[str, np.ndarray]] = {part: {} for part in names}
    count = 0
    for target in names["train"].targets:
        own = {files.label(each.targets[target]): files.load(each.targets[target]) for each in names.values()}
        read, count = read_targets(own, classes if target == ONE else 0)
        for part, values in zip(names, read.values(), strict=True):
            found[part][target] = values
    return found, count


def _column(files: ArrayFiles, option: str, name: str | None) -> Callable[[], np.ndarray | None]:
    return lambda: None if name is None else files.named(name, f"data.{option}")


def _read_weights(files: ArrayFiles, name: str, size: int) -> np.ndarray:
    """Return the sample weights of a part, float32 [size], from real numbers [size] or [size, 1]."""
    weights, where = files.load(name), files.label(name)
    if weights.shape not in ((size,), (size, 1)) or weights.dtype.kind not in "biuf":
        raise UserError(
            f"{where}: {weights.dtype} of shape {list(weights.shape)}; expected a number for each of {size} "
            "examples. Give one weight per example."
        )
    weights = weights.reshape(size).astype(np.float32)
    if len(bad := np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))):
        raise UserError(
            f"{where}: {len(bad)} weights are negative or not finite, the first is {weights[bad[0]]} in row {bad[0]}; "
            "expected 0 or more. Fix them, or leave these examples out."
        )
    _check_shares(weights, {"": np.arange(size)}, where)
    return weights


def _check_shares(weights: np.ndarray, rows: Mapping[str, np.ndarray], where: str) -> None:
    """Refuse a split, given by its name and rows, whose examples all have weight 0: its metrics would be 0 / 0."""
    for part, own in rows.items():
        if not weights[own].any():
            raise UserError(f"{where}: all weights{part and ' of the split '}{part} are 0; expected one above 0.")


def _sources(
    files: ArrayFiles,
    names: Mapping[str, _Names],
    targets: Mapping[str, Mapping[str, np.ndarray]],
    weights: Mapping[str, np.ndarray],
    options: Mapping[str, Any],
) -> tuple[dict[str, Source], dict[str, InputForm]]:
    """Return the source of every part, and the one form that each input has in all of them."""
    several = any(ONE not in each for each in (names["train"].inputs, names["train"].targets))
    if (files.is_npz or several) and options["cache"] == "none":
        what = "which has several inputs or targets" if several else "an npz, of which no single rows can be read"
        raise UserError(
            f"data.cache=none received for '{files.path}', {what}; expected a folder of x_train.npy and y_train.npy, "
            "or data.cache=auto."
        )
    sizes = sum(files.sizes[each] for part in names.values() for each in part.inputs.values())
    held = is_held(options["cache"], sizes) or files.is_npz or several
    sources: dict[str, Source] = {}
    forms: dict[str, InputForm] = {}
    for name, part in names.items():
        columns = {SAMPLE_WEIGHTS: weights[name]} if name in weights else {}
        for called in names["train"].inputs:
            where, array = files.label(part.inputs[called]), part.inputs[called]
            inputs = files.load(array) if held else open_npy(files.files[array])
            check_lengths(inputs, next(iter(targets[name].values())), where)
            stored, scale, channels = inputs.shape[1:], options["scale"], options["channels"]
            form = input_form(stored, inputs.dtype, scale=scale, channels=channels, where=where)
            _check_form(inputs, form, forms.setdefault(called, form), where)
            if held:
                columns[_column_of(INPUTS, called)] = form.in_memory(inputs, where)
            else:
                sources[name] = _rows_of(NpyRows(files.files[array]), form, targets[name][ONE], columns)
        if held:
            columns |= {_column_of(TARGETS, each): values for each, values in targets[name].items()}
            sources[name] = ArraySource(columns, forms[ONE].transform if not several else partial(_named, dict(forms)))
    return sources, forms


def _check_form(inputs: np.ndarray, form: InputForm, first: InputForm, where: str) -> None:
    check_shape(inputs, first.stored, where)
    if form.pixels != first.pixels:
        raise UserError(
            f"{where}: inputs of dtype {form.dtype} beside {first.dtype} to train on, of which one would be scaled "
            "and the other not; expected one dtype. Convert them, or set data.scale."
        )


def _column_of(kind: str, name: str) -> str:
    return f"{kind}/{name}" if name else kind


def _named(forms: Mapping[str, InputForm], batch: Batch) -> Batch:
    """Return a batch with inputs as the network takes them, and several inputs or targets in dicts."""
    made = {name: form.transform({INPUTS: batch[_column_of(INPUTS, name)]})[INPUTS] for name, form in forms.items()}
    found = {name.partition("/")[2]: each for name, each in batch.items() if name.partition("/")[0] == TARGETS}
    rest = {name: each for name, each in batch.items() if name.partition("/")[0] not in (INPUTS, TARGETS)}
    return {**rest, INPUTS: made.get(ONE, made), TARGETS: found.get(ONE, found)}


def _rows_of(stored: NpyRows, form: InputForm, targets: np.ndarray, columns: Mapping[str, np.ndarray]) -> HostRows:
    def read(rows: np.ndarray) -> dict[str, np.ndarray]:
        inputs = stored.read(rows)
        form.check_rows(inputs, rows, f"'{stored.path}'")
        return {INPUTS: inputs, **{name: column[rows] for name, column in columns.items()}}

    specs = {name: tf.TensorSpec([], column.dtype) for name, column in columns.items()}
    return HostRows(read, {INPUTS: tf.TensorSpec(form.stored, stored.dtype), **specs}, targets, form.transform)
