"""Convert what `fit` takes to splits of examples: arrays, tensors, dicts of inputs, datasets, our own data."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from hookline.checks import check_inputs
from hookline.recipes.losses import ONE, Loss
from hookline.recipes.model_checks import Shape, check_targets
from hookline.trainer.errors import UserError, check_integer
from hookline.trainer.input.data import (
    ArraySource,
    Data,
    Split,
    check_finite,
    check_labels,
    check_some_weight,
    check_weights,
)
from hookline.trainer.objective import SAMPLE_WEIGHTS, Batch

TRAIN, VALIDATION = "train", "validation"
INPUTS, TARGETS = "inputs", "targets"
BATCH_SIZE = 32
"""As in Keras."""
DATASETS = (tf.data.Dataset, keras.utils.PyDataset)
EVEN = "Expected one length: padded_batch(..., padded_shapes=...) of a dataset, or keras.utils.pad_sequences of lists."
PATIENCE = 10.0  # seconds of reading before a warning


@dataclass(frozen=True)
class Form:
    """Describe what the model takes and returns, and how targets are converted."""

    dtypes: Mapping[str, str] = field(default_factory=dict)  # by input name; if empty, floats and uint8 become float32
    classes: int = 0  # of a classifier; 0 if targets may be anything
    one_hot: bool = False  # whether targets are class probabilities, which become labels if all are one-hot
    names: tuple[str, ...] = ()  # of the outputs with losses, in order, if there are several
    by_name: bool = False  # whether the model returns a dict, so that outputs have no order
    inputs: Any = None  # of the model, in the structure that it takes
    rows: Mapping[str, int] = field(default_factory=dict)  # of the embedding that reads each input
    outputs: Mapping[str, Shape] = field(default_factory=dict)  # shapes by name, batch axis first; empty if unknown
    losses: Mapping[str, Loss] = field(default_factory=dict)  # by output


@dataclass(frozen=True, eq=False)
class Examples:
    """Hold examples in memory."""

    inputs: Any  # an array, or arrays in a dict, list or tuple: [n, ...] each
    targets: Any = None  # [n, ...], a dict for several outputs; None if only predictions are needed
    weights: np.ndarray | None = None  # of the examples: [n]
    batch_size: int | None = None  # of the dataset they come from; None for arrays


def training_data(
    x: Any,
    y: Any,
    sample_weight: Any = None,
    validation_data: Any = None,
    validation_split: float = 0.0,
    batch_size: int | None = None,
    *,
    form: Form,
) -> tuple[Data, int]:
    """Return the data to train on and the batch size: as given, else the dataset's, else 32."""
    if isinstance(x, Data):
        _refuse_beside("a Data", y=y, sample_weight=sample_weight, validation_data=validation_data)
        return replace(x, test=None), _batch_size(batch_size, None, x.train)
    if validation_data is not None and validation_split:
        raise UserError("validation_data and validation_split received. Expected one of them.")
    if isinstance(x, Split):
        _refuse_beside("a Split", y=y, sample_weight=sample_weight)
        train, size, labels, weights = replace(x, name=TRAIN), None, True, None
        classes, held_out = form.classes or int(x.labels.max()) + 1, _held_out(validation_data, form)
    else:
        examples, held_out = read_examples(x, y, sample_weight, "x", form), _held_out(validation_data, form)
        if form.one_hot and isinstance(held_out, Examples):
            examples, held_out = _rows_of_both(examples, held_out)
        classes, size = _classes(examples.targets, form), examples.batch_size
        train, labels, weights = split_of(TRAIN, examples, form), classes > 0, examples.weights
    validation = split_of(VALIDATION, held_out, form) if isinstance(held_out, Examples) else held_out
    if validation_split:
        train, validation = _split_off(train, validation_split)
        if weights is not None:
            parts = {each.name: each.indices for each in (train, validation)}
            check_some_weight(weights, parts, "sample_weight, of which validation_split= takes the last ones")
    if validation is not None and labels:
        classes = max(classes, form.classes or int(validation.labels.max()) + 1)
    inputs = train.source.gather(tf.constant(train.indices[:1]))[INPUTS]
    shape = tuple(inputs.shape[1:]) if isinstance(inputs, tf.Tensor) else ()
    return Data("arrays", train, validation, None, shape, classes), _batch_size(batch_size, size, train)


def _batch_size(given: Any, of_dataset: int | None, train: Split) -> int:
    return min(check_integer("batch_size", (of_dataset or BATCH_SIZE) if given is None else given), train.size)


def evaluation_split(x: Any, y: Any, sample_weight: Any, form: Form) -> Split:
    """Return the split to evaluate on; of a `Data`, its test split, else validation, else training."""
    if isinstance(x, Data | Split):
        _refuse_beside(f"a {type(x).__name__}", y=y, sample_weight=sample_weight)
        return x if isinstance(x, Split) else x.test or x.validation or x.train
    examples = read_examples(x, y, sample_weight, "x", form)
    if form.one_hot and examples.targets.ndim > 1:
        raise UserError(
            "y holds class probabilities, but all training targets were one-hot. Expected one-hot rows, or class "
            "probabilities in y or validation_data of fit, too."
        )
    if classes := _classes(examples.targets, form):
        check_labels(examples.targets, classes, "y")
    return split_of("test", examples, form)


def read_examples(x: Any, y: Any, sample_weight: Any, name: str, form: Form | None = None) -> Examples:
    """Return examples as arrays; with a form, targets are required. A dataset is read once, as a whole."""
    if isinstance(x, DATASETS):
        _refuse_beside("a dataset", y=y, sample_weight=sample_weight)
        examples = _joined(_batches(x, name), name)
    elif isinstance(x, Iterator) or callable(x):
        raise UserError(
            f"{name} is of type {type(x).__name__}. Expected arrays, a tf.data.Dataset or a keras.utils.PyDataset: a "
            "generator cannot give the rows of a step again when a run continues."
        )
    elif isinstance(sample_weight, Mapping):
        raise UserError(
            "sample_weight is a dict. Expected one weight for each example [n], of all outputs alike; loss_weights= "
            "weighs outputs."
        )
    else:
        targets = None if y is None else _arrays(y, "y")
        weights = None if sample_weight is None else _array(sample_weight, "sample_weight")
        examples = _checked(Examples(_arrays(x, name), targets, weights), name)
    if form is None:
        return examples
    if examples.weights is not None:
        check_some_weight(examples.weights, {"": np.arange(len(examples.weights))}, "sample_weight")
    examples = _with_targets(examples, form, "y" if name == "x" else f"y of {name}")
    check_targets(examples.targets, form.losses, form.outputs, "y" if name == "x" else f"y of {name}")
    return examples


def split_of(name: str, examples: Examples, form: Form) -> Split:
    """Return examples as a split; inputs are cast to the dtypes of the model."""
    check_inputs(examples.inputs, form.inputs, form.rows, "validation_data" if name == VALIDATION else "x")
    given = {INPUTS: examples.inputs, TARGETS: examples.targets, SAMPLE_WEIGHTS: examples.weights}
    flat = tf.nest.flatten(examples.inputs)
    by_name = isinstance(examples.inputs, dict) and examples.inputs.keys() == form.dtypes.keys()
    names = sorted(form.dtypes) if by_name else form.dtypes  # `tf.nest.flatten` sorts a dict by its keys
    dtypes = [form.dtypes[name] for name in names]
    if len(dtypes) != len(flat):
        dtypes = ["float32" if each.dtype.kind == "f" or each.dtype == np.uint8 else each.dtype.name for each in flat]
    taken = tf.nest.pack_sequence_as(examples.inputs, dtypes)

    def transform(batch: Batch) -> Batch:
        return {**batch, INPUTS: tf.nest.map_structure(tf.cast, batch[INPUTS], taken)}

    source = ArraySource({key: each for key, each in given.items() if each is not None}, transform)
    return Split(name, source, np.arange(len(flat[0]), dtype=np.int64))


def model_dtypes(model: keras.Model) -> dict[str, str]:
    """Return the dtypes of a model's inputs by name, in the order of `tf.nest.flatten`; empty if unknown."""
    inputs = getattr(model, "input", None) if hasattr(model, "inputs") and model.inputs else None
    if isinstance(inputs, dict) and all(hasattr(each, "dtype") for each in inputs.values()):
        return {name: inputs[name].dtype for name in sorted(inputs)}
    return {} if inputs is None else {each.name: each.dtype for each in tf.nest.flatten(inputs)}


def _arrays(x: Any, name: str) -> Any:
    """Return inputs or targets as arrays in their structure; a list of numbers is one array."""
    if isinstance(x, list | tuple) and x:
        x = list(x) if hasattr(x[0], "shape") else _even(x, name)
    return tf.nest.map_structure(lambda each: _array(each, name), x)


def _even(rows: Any, name: str) -> np.ndarray:
    """Return lists as an array; refuse those of different lengths."""
    try:
        return np.asarray(rows)
    except ValueError as error:
        lengths = sorted({len(each) for each in rows if hasattr(each, "__len__")})
        span = f" of {lengths[0]} to {lengths[-1]} entries" if len(lengths) > 1 else " of different shapes"
        raise UserError(f"{name} has rows{span}. {EVEN}") from error


def _check_dense(value: Any, name: str) -> None:
    """Refuse ragged tensors, and sparse tensors and matrices."""
    remedy = "x.toarray()" if hasattr(value, "toarray") else ""  # of scipy.sparse
    if isinstance(value, tf.RaggedTensor):
        remedy = "x.to_tensor(shape=[None, length])"
    elif isinstance(value, tf.SparseTensor):
        remedy = "tf.sparse.to_dense(x)"
    if remedy:
        raise UserError(f"{name} holds a {type(value).__name__}. Expected an array or a tensor: {remedy}.")


def _array(value: Any, name: str) -> np.ndarray:
    _check_dense(value, name)
    array = _even(value.numpy() if hasattr(value, "numpy") else value, name)
    if array.dtype.kind not in "biuf" or not array.ndim:
        hint = " Strings are not taken: apply their lookup layer, such as keras.layers.StringLookup, before fit."
        if name == "y":
            hint = " np.unique(names, return_inverse=True)[1] numbers the names of classes."
        if array.dtype.kind not in "US" and not any(isinstance(each, str | bytes) for each in array.flat):
            hint = ""
        raise UserError(
            f"{name} is of type {type(value).__name__} and dtype {array.dtype}. Expected numbers [n, ...] in arrays, "
            f"tensors, a dict of them, a tf.data.Dataset or a keras.utils.PyDataset.{hint}"
        )
    array = array.astype(np.float32) if array.dtype == np.float64 else array
    return array.astype(np.int64) if array.dtype == np.bool_ else array


def _checked(examples: Examples, name: str) -> Examples:
    sizes = {len(each) for each in tf.nest.flatten(examples.inputs)}
    for given, label in ((examples.targets, "y"), (examples.weights, "sample_weight")):
        for other in [] if given is None else tf.nest.flatten(given):
            if {len(other)} != sizes:
                raise UserError(f"{name} has {min(sizes)} examples, and {label} has {len(other)}. Expected as many.")
    if len(sizes) > 1 or not min(sizes):
        raise UserError(f"{name} has inputs of lengths {sorted(sizes)}. Expected one length of at least 1.")
    for each in tf.nest.flatten(examples.inputs):
        check_finite(each, name)
    if examples.weights is None:
        return examples
    return replace(examples, weights=check_weights(examples.weights, min(sizes), "sample_weight"))


def _with_targets(examples: Examples, form: Form, name: str) -> Examples:
    """Return examples with targets as objectives take them: labels int64 [n], or float32 [n, ...]."""
    targets = examples.targets
    if targets is None:
        raise UserError("No targets received. Expected y=, or a dataset of pairs (x, y).")
    for each in tf.nest.flatten(targets):
        check_finite(each, name)
    if isinstance(targets, dict | list) and ONE in form.losses:
        if len(targets) != 1:
            raise UserError(f"{name} has {len(targets)} targets, and there is one loss. Expected one array [n, ...].")
        (targets,) = tf.nest.flatten(targets)
    if isinstance(targets, dict | list):
        return replace(examples, targets=_by_output(targets, form, name))
    if form.one_hot and targets.ndim == 2:
        exact = ((targets == 0) | (targets == 1)).all() and (targets.sum(axis=1) == 1).all()
        return replace(examples, targets=targets.argmax(axis=1) if exact else targets.astype(np.float32))
    if targets.dtype.kind in "iu" or (form.classes and (targets == np.floor(targets)).all()):
        loss = form.losses.get(ONE)
        is_column = targets.ndim == 2 and targets.shape[1] == 1 and (loss is None or loss.by_value)
        flat = targets[:, 0] if is_column else targets  # custom functions get the same shape as in Keras
        return replace(examples, targets=flat.astype(np.int64))
    return replace(examples, targets=targets.astype(np.float32))


def _by_output(targets: Any, form: Form, name: str) -> dict[str, np.ndarray]:
    """Return the targets by output: int64 for an integer dtype, else float32."""
    if isinstance(targets, list):
        if form.by_name:
            raise UserError(f"y is a list, and the model returns a dict. Expected a dict with {', '.join(form.names)}.")
        if len(targets) != len(form.names):
            raise UserError(f"{name} has {len(targets)} targets. Expected {len(form.names)}: {', '.join(form.names)}.")
        targets = dict(zip(form.names, targets, strict=True))
    if missing := [each for each in form.names if each not in targets]:
        raise UserError(f"{name} has targets for {', '.join(targets)}. Expected one for '{missing[0]}', too.")
    return {key: each.astype(np.int64 if each.dtype.kind in "iu" else np.float32) for key, each in targets.items()}


def _classes(targets: Any, form: Form) -> int:
    """Return the number of classes; 0 if targets are not labels."""
    if not isinstance(targets, np.ndarray) or targets.ndim != 1 or targets.dtype != np.int64:
        return 0
    if form.classes:
        return form.classes
    loss = form.losses.get(ONE)
    ignored = getattr(loss.function, "ignore_class", None) if loss is not None else None
    if ignored is not None and (targets == ignored).any():  # not all are classes
        return 0
    return max(2, int(targets.max()) + 1) if targets.min() >= 0 and targets.max() < targets.size else 0


def rows_form(form: Form) -> Form:
    """Return a form that keeps one-hot rows as rows, as next to class probabilities."""
    return replace(form, classes=0, one_hot=False)


def _rows_of_both(first: Examples, second: Examples) -> tuple[Examples, Examples]:
    """Convert labels back to one-hot rows if the other examples have class probabilities."""
    rows = [each.targets.shape[1] for each in (first, second) if each.targets.ndim == 2]
    if len(rows) != 1:
        return first, second
    eye = np.eye(rows[0], dtype=np.float32)
    made = [replace(e, targets=eye[e.targets]) if e.targets.ndim == 1 else e for e in (first, second)]
    return made[0], made[1]


def _held_out(given: Any, form: Form) -> Examples | Split | None:
    if given is None:
        return None
    if isinstance(given, Split):
        return replace(given, name=VALIDATION)
    parts = (given,) if isinstance(given, DATASETS) else given
    if not isinstance(parts, tuple | list) or len(parts) > 3:
        raise UserError(f"validation_data is of type {type(given).__name__}. Expected (x, y), a dataset, or a Split.")
    x, y, weights = (*parts, None, None)[:3]
    return read_examples(x, y, weights, "validation_data", form)


def _split_off(train: Split, share: float) -> tuple[Split, Split]:
    """Return the first and the last examples, split as Keras does."""
    end = math.floor(train.size * (1.0 - share))
    if not 0 < share < 1 or not 0 < end < train.size:
        raise UserError(f"validation_split={share!r} received. Expected a share between 0 and 1 that leaves examples.")
    held_out = replace(train, name=VALIDATION, indices=train.indices[end:])
    return replace(train, indices=train.indices[:end]), held_out


def _batches(dataset: Any, name: str) -> Iterable[Any]:
    if isinstance(dataset, tf.data.Dataset):
        endless, batches = dataset.cardinality() == tf.data.INFINITE_CARDINALITY, _announced(dataset, name)
    else:
        endless, batches = dataset.num_batches is None, (dataset[index] for index in range(dataset.num_batches or 0))
    if endless:
        raise UserError(f"{name} is an infinite dataset. Expected a finite one: dataset.take(batches).")
    return batches


def _announced(dataset: tf.data.Dataset, name: str) -> Iterator[Any]:
    """Yield the batches of a dataset of possibly unknown length, with one warning if reading takes long."""
    late = time.monotonic() + PATIENCE
    for number, batch in enumerate(dataset):
        if time.monotonic() > late:
            read = f"{name} is read into memory, {number:,} batches so far"
            warnings.warn(f"{read}. If it is infinite, use dataset.take(batches).", stacklevel=2)
            late = math.inf
        yield batch


def _joined(batches: Iterable[Any], name: str) -> Examples:
    parts: list[Examples] = []
    for batch in batches:
        items = tuple(batch) if isinstance(batch, tuple | list) else (batch,)  # as Keras does
        if not 1 <= len(items) <= 3:
            raise UserError(f"{name} gives {len(items)} items a batch. Expected (x, y) or (x, y, sample_weight).")
        x, y, weights = (*items, None, None)[:3]
        for each in tf.nest.flatten((x, y)):
            _check_dense(each, name)
        if not all(np.ndim(each) for each in tf.nest.flatten((x, y)) if each is not None):
            raise UserError(f"{name} gives single examples. Expected batches: dataset.batch(64).")
        parts.append(read_examples(x, y, weights, name))
    if not parts:
        raise UserError(f"{name} is empty. Expected at least one batch.")
    columns = [(each.inputs, each.targets, each.weights) for each in parts]
    inputs, targets, weights = tf.nest.map_structure(lambda *each: _concatenated(each, name), *columns)
    return Examples(inputs, targets, weights, batch_size=len(tf.nest.flatten(parts[0].inputs)[0]))


def _concatenated(arrays: Sequence[Any], name: str) -> np.ndarray | None:
    """Return the arrays of all batches as one; None if there are none."""
    if arrays[0] is None:
        return None
    shapes = sorted({each.shape[1:] for each in arrays})
    if len(shapes) > 1:
        first, last = (list(each) for each in (shapes[0], shapes[-1]))
        raise UserError(f"{name} has examples of the shape {first} in one batch and {last} in another. {EVEN}")
    return np.concatenate(arrays)


def _refuse_beside(what: str, **others: Any) -> None:
    for name, value in others.items():
        if value is not None:
            raise UserError(f"{name} received beside {what}, which holds it. Expected one of them.")
