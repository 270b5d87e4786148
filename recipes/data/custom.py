"""A user's own examples."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from hookline.recipes.data.hold_out import check_split, count_classes, data_of_parts, hold_out
from hookline.recipes.data.input_form import HostRows, InputForm, check_fits, input_form, is_held
from hookline.trainer.deferred import prechecked
from hookline.trainer.errors import UserError
from hookline.trainer.input.checks import is_whole_number
from hookline.trainer.input.data import Data
from hookline.trainer.input.source import ArraySource, Source

INPUTS, TARGETS = "inputs", "targets"
TASKS_A_THREAD = 4
ROWS_A_PASS = 256
MOST_THREADS = 256
LARGEST_NUMBER = 8  # bytes: TensorFlow has no long double

Value = TypeVar("Value")


class ExampleReader:
    """Give rows of an object that has `__len__` and `__getitem__`, or `__len__` and `gather`.

    Attributes:
        name: what messages call the object.
        alike: how to fix examples that differ, for messages.
        size: number of examples.
        specs: shape of one row and dtype of every array but the targets, by name, as in the first example.
    """

    def __init__(self, examples: Any, *, threads: int, name: str, alike: str = "Return every example alike.") -> None:
        """Take an object, and read its first example.

        Args:
            examples: `examples[row]` gives one example, or `examples.gather(rows)` those of rows, int64 [n]: inputs
                and target, or a mapping with "inputs", "targets" and perhaps more. Called by several threads at a
                time; the same row must give the same example.
            threads: that read; 1 for an object that is not safe to be used by several.
            name: what messages call it.
            alike: how to fix examples that differ in shape, for messages.

        Raises:
            UserError: an object without these methods, without examples, or whose first example is none.
        """
        if not is_whole_number(threads) or not 1 <= threads <= MOST_THREADS:
            raise UserError(f"Received data.threads={threads!r}; expected a whole number in 1..{MOST_THREADS}.")
        self._batched = callable(getattr(examples, "gather", None))
        if not hasattr(examples, "__len__") or not (self._batched or hasattr(examples, "__getitem__")):
            raise UserError(
                f"{name} is a {type(examples).__name__}; expected a class with __len__ and __getitem__(row), or "
                "__len__ and gather(rows). Add them."
            )
        self.name, self._examples, self.alike = name, examples, alike
        self.size = _size(examples, name)
        # One pool for all batches: never more threads in the user's code, and if one, always the same.
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="examples")
        self._chunk_count = TASKS_A_THREAD * threads
        self._formats: dict[str, tuple[np.dtype, tuple[int, ...]]] = {}
        first = self._read(np.zeros([1], np.int64))
        if self._formats[TARGETS][1] or self._formats[TARGETS][0].kind not in "iu":
            dtype, shape = self._formats[TARGETS]
            raise UserError(f"{name}, row 0: target {dtype} of shape {list(shape)}; expected the number of a class.")
        self.specs = {key: tf.TensorSpec(first[key].shape[1:], first[key].dtype) for key in first if key != TARGETS}

    @property
    def bytes(self) -> int:
        """Return how much memory all examples would take, in bytes."""
        return self.size * sum(spec.shape.num_elements() * spec.dtype.size for spec in self.specs.values())

    def labels(self) -> np.ndarray:
        """Return the class of every example, int64 [size]: its attribute `labels`, or one pass over all examples.

        Raises:
            UserError: labels that are no integers [size], or an example that cannot be read.
        """
        declared = self._declared()
        if declared is not None:
            return declared
        return np.concatenate([self._read(rows)[TARGETS] for rows in self._passes()]).astype(np.int64)

    def everything(self, form: InputForm) -> dict[str, np.ndarray]:
        """Return all rows, checked: arrays [size, ...] by name; "targets" are int64.

        Args:
            form: of the inputs.

        Raises:
            UserError: an example that cannot be read or differs from the first, or labels that are not its target.
        """
        found = {name: np.empty([self.size, *shape], dtype) for name, (dtype, shape) in self._formats.items()}
        declared = self._declared()
        for rows in self._passes():
            read = self._read(rows)
            self._check_read(read, rows, declared, form)
            for name, values in read.items():
                found[name][rows] = values
        return {**found, TARGETS: found[TARGETS].astype(np.int64)}

    def column(self, name: str) -> np.ndarray | None:
        """Return an attribute with one value for each example, such as "groups"; None if there is none.

        Args:
            name: of the attribute.
        """
        values = getattr(self._examples, name, None)
        return None if values is None else self._call(lambda: np.asarray(values), f"its {name}")

    def reading(self, labels: np.ndarray, form: InputForm) -> Callable[[np.ndarray], dict[str, np.ndarray]]:
        """Return the function that reads the rows of a batch, checked.

        Args:
            labels: int64 [size]; the targets must be the same.
            form: of the inputs.
        """

        def read(rows: np.ndarray) -> dict[str, np.ndarray]:
            found = self._read(rows)
            self._check_read(found, rows, labels, form)
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
        labels = self.column("labels")
        if labels is not None and (labels.shape != (self.size,) or labels.dtype.kind not in "iu"):
            raise UserError(
                f"{self.name}: labels of dtype {labels.dtype} and shape {list(labels.shape)}; expected integers "
                f"[{self.size}]. Give the class of each row, or leave the attribute out."
            )
        return None if labels is None else labels.astype(np.int64)

    def _passes(self) -> Iterator[np.ndarray]:
        for start in range(0, self.size, ROWS_A_PASS):
            yield np.arange(start, min(start + ROWS_A_PASS, self.size))

    def _read(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return new arrays [n, ...] by name, "targets" among them."""
        if self._batched:
            return self._pool.submit(self._gathered, rows).result()
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


def _size(examples: Any, name: str) -> int:
    try:
        size = len(examples)
    except Exception as error:
        raise UserError(f"{name} has no length: {type(error).__name__}: {error}. Fix its __len__.") from error
    if size < 1:
        raise UserError(f"{name} has {size} examples; expected at least one. Give it some.")
    return size


MEND = "give {name}, one for each example, as an attribute of the source."
NO_SOURCE = (
    "data.source is null; expected a class of yours. Set +data.source._target_=<package.module.Class>, its arguments "
    "as +data.source.<name>=<value>, and plugins=[<package>]."
)
PARTS = ("train", "validation", "test")


@dataclass(frozen=True)
class Plan:
    """Say how examples that are read one by one are used; the attributes are the arguments of `custom`."""

    held_out: Mapping[str, float | int]
    split: str
    seed: int
    classes: int | None
    class_names: Sequence[str]
    cache: str
    scale: str
    channels: str


def _check(split: str, source: Any) -> None:
    check_split(split)
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
    validation: float | int = 0.1,
    test: float | int = 0.2,
    split: str = "stratified",
    seed: int = 0,
) -> Data:
    """Return the examples of an object with `__len__` and `__getitem__`, or with `__len__` and `gather`.

    `source[row]` gives one example: inputs and target, or a mapping with "inputs", "targets" and perhaps more names;
    `source.gather(rows)` gives those of rows, int64 [n], as arrays [n, ...]. Several threads read. The same row must
    always give the same example (random changes are the `augment` group's), of the shapes and dtypes of the first, and
    finite. The object may have `labels`, the class of every row, so that they need not be read from all examples first;
    and `groups` or `keys` for those ways to split.

    Args:
        source: the object; on the command line data.source._target_=<import path of its class>.
        validation_source: likewise, of the validation examples; null takes them from the source.
        test_source: likewise, of the test examples.
        classes: number of classes; null: the largest label and one.
        class_names: what each class is called, by label; null for none.
        scale: "pixels" makes [-1, 1] of 0 .. 255; "none" keeps values; "auto" is "pixels" for uint8, else "none".
        channels: "last", "first", "none" or "auto"; see `input_form`.
        cache: "memory" reads all rows before training; "none" those of each batch; "auto" is "memory" up to 1 GiB.
        threads: that read examples; 1 for an object that several must not use.
        validation: share (0.1) or number (5000) of examples held out where there is no validation source.
        test: likewise where there is no test source.
        split: how: "stratified", "random", "group" or "hash"; see `hold_out`.
        seed: of the split, 0 or more. It is not the run's seed, so runs with other seeds compare on one split.

    Returns:
        Data with "inputs" float32 [n, ...], "targets" int64 [n], and what else the examples hold.

    Raises:
        UserError: an object without these methods, an example that cannot be read or differs from the first, bad
            labels, or a setting out of range.
    """
    _check(split, source)
    readers = {
        part: ExampleReader(examples, threads=threads, name=_called(examples, part))
        for part, examples in zip(PARTS, (source, validation_source, test_source), strict=True)
        if examples is not None
    }
    plan = Plan(
        {"validation": validation, "test": test}, split, seed, classes, class_names or (), cache, scale, channels
    )
    return read_data("custom", readers, plan)


def read_data(name: str, readers: Mapping[str, ExampleReader], plan: Plan) -> Data:
    """Return the splits of examples that readers give.

    Args:
        name: of the data.
        readers: by part, "train" among them.
        plan: what becomes of the examples.

    Raises:
        UserError: see `custom`.
    """
    train = readers["train"]
    for reader in readers.values():
        if reader.specs != train.specs:
            raise UserError(
                f"{reader.name} gives {_listed(reader)}; expected {_listed(train)}, as {train.name} gives. "
                f"{reader.alike}"
            )
    form = _form(train, plan.scale, plan.channels)
    held = is_held(plan.cache, sum(reader.bytes for reader in readers.values()))
    sources = {part: _source(reader, form, held) for part, reader in readers.items()}
    count = count_classes({readers[part].name: source.labels for part, source in sources.items()}, plan.classes)
    rows = hold_out(
        sources["train"].labels,
        {part: amount for part, amount in plan.held_out.items() if part not in readers},
        split=plan.split,
        seed=plan.seed,
        groups=lambda: train.column("groups"),
        keys=lambda: train.column("keys"),
        mend=MEND,
    )
    made = form.preparation
    return data_of_parts(name, sources, rows, preparation=made, classes=count, class_names=plan.class_names)


def _source(reader: ExampleReader, form: InputForm, held: bool) -> Source:
    if held:
        check_fits(reader.bytes, reader.name, "Set data.cache=none.")
        return ArraySource(reader.everything(form), form.transform)
    labels = reader.labels()
    return HostRows(reader.reading(labels, form), reader.specs, labels, form.transform)


def _form(reader: ExampleReader, scale: str, channels: str) -> InputForm:
    spec = reader.specs["inputs"]
    dtype = np.dtype(spec.dtype.as_numpy_dtype)
    return input_form(tuple(spec.shape), dtype, scale=scale, channels=channels, where=reader.name)


def _called(examples: Any, part: str) -> str:
    option = "data.source" if part == "train" else f"data.{part}_source"
    return f"{option} ({type(examples).__name__})"


def _listed(reader: ExampleReader) -> str:
    return ", ".join(f"{name} {spec.dtype.name} {list(spec.shape)}" for name, spec in reader.specs.items())
