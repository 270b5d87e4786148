"""A user's own examples."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from hookline.recipes.data.hold_out import PARTS, check_split, data_of_parts, hold_out
from hookline.recipes.data.input_form import LARGEST_NUMBER, HostRows, InputForm, check_fits, input_form, is_held
from hookline.recipes.data.targets import are_labels, as_labels, as_numbers, count_classes
from hookline.recipes.data.worker_processes import InProcesses
from hookline.trainer.deferred import prechecked
from hookline.trainer.errors import UserError
from hookline.trainer.input.checks import is_whole_number
from hookline.trainer.input.data import Data
from hookline.trainer.input.source import ArraySource, Source

INPUTS, TARGETS = "inputs", "targets"
TASKS_A_THREAD = 4
ROWS_A_PASS = 256
MOST_THREADS = 256

Value = TypeVar("Value")


class ExampleReader:
    """Give rows of an object that has `__len__` and `__getitem__`, or `__len__` and `gather`; see `custom`.

    Attributes:
        name: what messages call the object.
        alike: how to fix examples that differ, for messages.
        size: number of examples.
        specs: shape of one row and dtype of every array, by name, as in the first example; of labels there is none.
        has_classes: whether the targets are labels.
    """

    def __init__(
        self,
        examples: Any,
        *,
        threads: int,
        name: str,
        classes: int | None = None,
        alike: str = "Return every example alike.",
    ) -> None:
        """Take an object, and read its first example; without classes, `classes` is 0."""
        if not is_whole_number(threads) or not 1 <= threads <= MOST_THREADS:
            raise UserError(f"Received data.threads={threads!r}; expected a whole number in 1..{MOST_THREADS}.")
        self._batched = callable(getattr(examples, "gather", None))
        if not hasattr(examples, "__len__") or not (self._batched or hasattr(examples, "__getitem__")):
            raise UserError(
                f"{name} is a {type(examples).__name__}; expected a class with __len__ and __getitem__(row), or "
                "__len__ and gather(rows). Add them."
            )
        self.name, self._examples, self.alike = name, examples, alike
        self.size = self._call(lambda: len(examples), "its length")
        if self.size < 1:
            raise UserError(f"{name} has {self.size} examples; expected at least one. Give it some.")
        # One pool for all batches: never more threads in the user's code, and if one, always the same.
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="examples")
        self._chunk_count = TASKS_A_THREAD * threads
        self._formats: dict[str, tuple[np.dtype, tuple[int, ...]]] = {}
        self.has_classes = False
        first = self._read(np.zeros([1], np.int64))
        self.has_classes = classes != 0 and (classes is not None or are_labels(first[TARGETS]))
        if self.has_classes:
            as_labels(first.pop(TARGETS), name)
        self.specs = {key: tf.TensorSpec(each.shape[1:], each.dtype) for key, each in first.items()}

    @property
    def bytes(self) -> int:
        """Return how much memory all examples would take, in bytes."""
        return self.size * sum(spec.shape.num_elements() * spec.dtype.size for spec in self.specs.values())

    def labels(self) -> np.ndarray:
        """Return the class of every example, int64 [size]: its attribute `labels`, or one pass over all examples."""
        declared = self._declared()
        return np.concatenate([self._read(rows)[TARGETS] for rows in self._passes()]) if declared is None else declared

    def everything(self, form: InputForm) -> dict[str, np.ndarray]:
        """Return all rows, checked: arrays [size, ...] by name; labels are int64 [size]."""
        found = {
            name: np.empty([self.size, *spec.shape], spec.dtype.as_numpy_dtype) for name, spec in self.specs.items()
        }
        if self.has_classes:
            found[TARGETS] = np.empty([self.size], np.int64)
        declared = self._declared()
        for rows in self._passes():
            read = self._read(rows)
            self._check_read(read, rows, declared, form)
            for name, values in read.items():
                found[name][rows] = values
        return found

    def column(self, name: str) -> np.ndarray | None:
        """Return an attribute with one value for each example, such as "groups"; None if there is none."""
        values = getattr(self._examples, name, None)
        return None if values is None else self._call(lambda: np.asarray(values), f"its {name}")

    def reading(self, labels: np.ndarray | None, form: InputForm) -> Callable[[np.ndarray], dict[str, np.ndarray]]:
        """Return the function that reads the rows of a batch, checked: targets against labels, where there are such."""

        def read(rows: np.ndarray) -> dict[str, np.ndarray]:
            found = self._read(rows)
            self._check_read(found, rows, labels, form)
            if labels is not None:
                del found[TARGETS]
            return found

        return read

    def _check_read(
        self, found: Mapping[str, np.ndarray], rows: np.ndarray, labels: np.ndarray | None, form: InputForm
    ) -> None:
        form.check_rows(found[INPUTS], rows, self.name)
        if labels is None:
            return
        wrong = np.flatnonzero(found[TARGETS] != labels[rows])
        if len(wrong):
            row = int(rows[wrong[0]])
            raise UserError(
                f"{self.name}, row {row}: target {found[TARGETS][wrong[0]]}, but its label was {labels[row]}; expected "
                "the same example whenever it is read. Fix the class that gives it, or its labels."
            )

    def _declared(self) -> np.ndarray | None:
        labels = self.column("labels") if self.has_classes else None
        if labels is not None and len(labels := as_labels(labels, f"{self.name}, its labels")) != self.size:
            raise UserError(f"{self.name} has {self.size} examples and {len(labels)} labels; expected one for each.")
        return labels

    def _passes(self) -> Iterator[np.ndarray]:
        for start in range(0, self.size, ROWS_A_PASS):
            yield np.arange(start, min(start + ROWS_A_PASS, self.size))

    def _read(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return new arrays [n, ...] by name, "targets" among them."""
        found = self._pool.submit(self._gathered, rows).result() if self._batched else self._one_by_one(rows)
        return {**found, TARGETS: (as_labels if self.has_classes else as_numbers)(found[TARGETS], self.name)}

    def _one_by_one(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        size = -(-len(rows) // self._chunk_count)
        chunks = [rows[start : start + size] for start in range(0, len(rows), size)]
        if not self._formats:
            self._learn(self._pool.submit(self._one, int(rows[0])).result())
        found = {name: np.empty([len(rows), *shape], dtype) for name, (dtype, shape) in self._formats.items()}
        tasks = [self._pool.submit(self._fill, found, chunk, index * size) for index, chunk in enumerate(chunks)]
        for task in tasks:
            task.result()  # in order, so that the first row that fails is named
        return found

    def _fill(self, found: dict[str, np.ndarray], rows: np.ndarray, start: int) -> None:
        # Each example is copied at once: the object may reuse its arrays for the next.
        for position, row in enumerate(rows.tolist(), start):
            for name, value in self._checked(self._one(row), row).items():
                found[name][position] = value

    def _one(self, row: int) -> dict[str, np.ndarray]:
        return self._arrays(self._call(lambda: self._examples[row], f"row {row}"), f"row {row}")

    def _gathered(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        try:
            given = self._call(lambda: self._examples.gather(rows.copy()), f"{len(rows)} rows from {rows[0]} on")
        except UserError:
            for row in rows if len(rows) > 1 else ():  # which one is it?
                self._call(partial(self._examples.gather, np.array([row])), f"row {row}")
            raise
        arrays = self._arrays(given, f"row {rows[0]} of {len(rows)}")
        for name, array in arrays.items():
            if array.ndim == 0 or len(array) != len(rows):
                raise UserError(
                    f"{self.name}: gather gave {name} of shape {list(array.shape)} for {len(rows)} rows; expected "
                    f"[{len(rows)}, ...]. Return one row for each."
                )
        if not self._formats:
            self._learn({name: array[0] for name, array in arrays.items()})
        self._checked({name: array[0] for name, array in arrays.items()}, int(rows[0]))
        return {name: np.array(array, self._formats[name][0]) for name, array in arrays.items()}

    def _call(self, function: Callable[[], Value], what: str) -> Value:
        try:
            return function()
        except UserError as error:
            raise UserError(f"{self.name}, {what}: {error}") from error
        except Exception as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            where = f" ({Path(place.filename).name}:{place.lineno})"
            raise UserError(
                f"{self.name}, {what}: {type(error).__name__}: {error}{where}. Fix the class that gives it, or the "
                "example."
            ) from error

    def _arrays(self, given: Any, what: str) -> dict[str, np.ndarray]:
        if isinstance(given, tuple | list) and len(given) == 2:
            given = {INPUTS: given[0], TARGETS: given[1]}
        if not isinstance(given, Mapping) or not {INPUTS, TARGETS} <= given.keys():
            found = f"the keys {', '.join(map(str, given))}" if isinstance(given, Mapping) else type(given).__name__
            raise UserError(
                f"{self.name}, {what}: received {found}; expected inputs and target, or a mapping with '{INPUTS}' and "
                f"'{TARGETS}'. Return that."
            )
        arrays = {str(name): self._call(partial(np.asarray, value), what) for name, value in given.items()}
        for name, array in arrays.items():
            if array.dtype.kind not in "iuf" or array.dtype.itemsize > LARGEST_NUMBER:
                raise UserError(f"{self.name}, {what}: {name} of dtype {array.dtype}; expected numbers. Convert them.")
        return arrays

    def _learn(self, example: Mapping[str, np.ndarray]) -> None:
        native = {name: (array.dtype.newbyteorder("="), array.shape) for name, array in example.items()}
        self._formats = dict(sorted(native.items()))

    def _checked(self, example: Mapping[str, np.ndarray], row: int) -> Mapping[str, np.ndarray]:
        if example.keys() != self._formats.keys():
            raise UserError(
                f"{self.name}, row {row}: {', '.join(sorted(example))}; expected {', '.join(self._formats)}, as in row "
                "0. Return the same names for each."
            )
        for name, array in example.items():
            dtype, shape = self._formats[name]
            if array.dtype.newbyteorder("=") != dtype or array.shape != shape:
                raise UserError(
                    f"{self.name}, row {row}: {name} {array.dtype} of shape {list(array.shape)}; expected {dtype} of "
                    f"shape {list(shape)}, as in row 0. {self.alike}"
                )
        return example


REMEDY = "give {name}, one for each example, as an attribute of the source."
NO_SOURCE = (
    "data.source is null; expected a class of yours. Set +data.source._target_=<package.module.Class>, its arguments "
    "as +data.source.<name>=<value>, and plugins=[<package>]."
)


def _check(split: str, source: Any, workers: int) -> None:
    check_split(split)
    if not is_whole_number(workers) or not 0 <= workers <= MOST_THREADS:
        raise UserError(f"Received data.workers={workers!r}; expected a whole number in 0..{MOST_THREADS}.")
    if source is None:
        raise UserError(NO_SOURCE)


@prechecked(_check)
def custom(
    *,
    source: Any = None,
    validation_source: Any = None,
    test_source: Any = None,
    classes: int | None = None,
    class_names: list[str] | None = None,
    scale: str = "auto",
    channels: str = "auto",
    cache: str = "auto",
    threads: int = 8,
    workers: int = 0,
    validation: float | int = 0.1,
    test: float | int = 0.2,
    split: str = "auto",
    seed: int = 0,
) -> Data:
    """Return the examples of an object with `__len__` and `__getitem__`, or with `__len__` and `gather`.

    `source[row]` gives one example: inputs and target (its class, or other numbers for task=supervised), or a mapping
    with "inputs", "targets" and perhaps more names; `source.gather(rows)` gives those of rows, int64 [n], as arrays
    [n, ...]. Several threads read, or several processes with a copy each. The same row must always give the same
    example (random changes are the `augment` group's), of the shapes and dtypes of the first, and finite. The object
    may have `labels`, the class of every row, so that they need not be read from all examples first; and `groups` or
    `keys` for those ways to split.

    The arguments are explained in `configs/data/custom.yaml`.
    """
    _check(split, source, workers)
    given = {"source": source, "validation_source": validation_source, "test_source": test_source}
    reading: dict[str, Any] = {"threads": threads, "classes": classes}
    readers = {
        part: _reader(examples, f"data.{option} ({type(examples).__name__})", workers, reading)
        for part, (option, examples) in zip(PARTS, given.items(), strict=True)
        if examples is not None
    }
    names, shares = class_names or (), {"validation": validation, "test": test}
    form = {"cache": cache, "scale": scale, "channels": channels}
    return read_data("custom", readers, shares, split=split, seed=seed, classes=classes, class_names=names, **form)


def _reader(examples: Any, name: str, workers: int, reading: Mapping[str, Any]) -> ExampleReader:
    """Return the reader of an object; where processes read it, first one in this process, which says what it is."""
    if workers:
        ExampleReader(examples, name=name, **reading)
        examples = InProcesses(examples, workers, name)
    return ExampleReader(examples, name=name, **reading)


def read_data(
    name: str,
    readers: Mapping[str, ExampleReader],
    shares: Mapping[str, float | int],
    *,
    split: str,
    seed: int,
    classes: int | None,
    class_names: Sequence[str],
    cache: str,
    scale: str,
    channels: str,
) -> Data:
    """Return the splits of examples that readers give, by part; `shares` of the training ones make up for the rest."""
    train = readers["train"]
    for reader in readers.values():
        if reader.specs != train.specs:
            raise UserError(
                f"{reader.name} gives {_listed(reader)}; expected {_listed(train)}, as {train.name} gives. "
                f"{reader.alike}"
            )
    spec = train.specs[INPUTS]
    dtype = np.dtype(spec.dtype.as_numpy_dtype)
    form = input_form(tuple(spec.shape), dtype, scale=scale, channels=channels, where=train.name)
    held = is_held(cache, sum(reader.bytes for reader in readers.values()))
    sources = {part: _source(reader, form, held) for part, reader in readers.items()}
    labels = {readers[part].name: source.labels for part, source in sources.items()} if train.has_classes else {}
    count = count_classes(labels, classes) if labels else 0
    rows = hold_out(
        train.size,
        labels.get(train.name),
        {part: amount for part, amount in shares.items() if part not in readers},
        split=split,
        seed=seed,
        groups=lambda: train.column("groups"),
        keys=lambda: train.column("keys"),
        remedy=REMEDY,
    )
    made = form.preparation
    return data_of_parts(name, sources, rows, preparation=made, classes=count, class_names=class_names)


def _source(reader: ExampleReader, form: InputForm, held: bool) -> Source:
    if held:
        check_fits(reader.bytes, reader.name, "Set data.cache=none.")
        return ArraySource(reader.everything(form), form.transform)
    labels = reader.labels() if reader.has_classes else None
    targets = reader.size if labels is None else labels
    return HostRows(reader.reading(labels, form), reader.specs, targets, form.transform)


def _listed(reader: ExampleReader) -> str:
    return ", ".join(f"{name} {spec.dtype.name} {list(spec.shape)}" for name, spec in reader.specs.items())
