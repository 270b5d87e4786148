"""A user's own examples."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from hookline.recipes.data import splits
from hookline.recipes.data.example_rows import INPUTS, TARGETS, Formats, is_batched, processes, read_own, read_rows
from hookline.recipes.data.input_form import (
    TARGET_IMAGES,
    HostRows,
    check_fits,
    check_pixels,
    check_row_weights,
    check_rows,
    input_form,
    is_held,
    transform_of,
)
from hookline.trainer.deferred import prechecked
from hookline.trainer.errors import UserError, check_choice, check_integer
from hookline.trainer.input.data import ArraySource, Data, Source
from hookline.trainer.input.preparation import Preparation
from hookline.trainer.objective import SAMPLE_WEIGHTS

ROWS_A_PASS = 256


class ExampleReader:
    """Examples of an object that has `__len__` and `__getitem__`, or `__len__` and `gather`; see `custom`."""

    def __init__(
        self,
        examples: Any,
        *,
        name: str,
        threads: int,
        workers: int = 0,
        classes: int | None = None,
        alike: str = "Return every example alike.",
    ) -> None:
        """Store an object, and read its first example; `classes` is 0 for targets without classes."""
        check_integer("data.threads", threads, 1)
        if not hasattr(examples, "__len__") or not (hasattr(examples, "gather") or hasattr(examples, "__getitem__")):
            raise UserError(f"{name} is a {type(examples).__name__}; expected __len__ with __getitem__ or gather.")
        self.name, self._examples, self.size = name, examples, len(examples)
        self._workers, self._alike = workers, alike
        self._formats: Formats = {}  # of row 0, once it is read
        self._pool: Executor
        if workers:
            self._pool, self._tasks = processes(examples, workers, name), workers
            self._reads: Callable[..., dict[str, np.ndarray]] = read_own
        else:
            self._pool = ThreadPoolExecutor(threads, thread_name_prefix="examples")
            self._tasks = 1 if is_batched(examples) else 4 * threads
            self._reads = partial(read_rows, examples)
        first = self._read_untyped(np.zeros([1], np.int64))
        if "sample_weight" in first:
            raise UserError(f"{name} gives 'sample_weight', which nothing reads. Expected '{SAMPLE_WEIGHTS}'.")
        self._formats = {key: (each.dtype, each.shape[1:]) for key, each in first.items()}
        self.has_classes = classes != 0 and (classes is not None or splits.are_labels(first[TARGETS]))
        targets = self._typed(first.pop(TARGETS))
        if not self.has_classes:
            first[TARGETS] = targets
        # Row shape and dtype of every array except labels.
        self.specs = {key: tf.TensorSpec(each.shape[1:], each.dtype) for key, each in first.items()}

    @property
    def bytes(self) -> int:
        """Return how much memory all examples would take, in bytes."""
        return self.size * sum(spec.shape.num_elements() * spec.dtype.size for spec in self.specs.values())

    def column(self, name: str) -> np.ndarray | None:
        """Return an attribute with one value for each example, such as "groups"; None if there is none."""
        values = getattr(self._examples, name, None)
        return None if values is None else np.asarray(values)

    def labels(self) -> np.ndarray | None:
        """Return the class of every example, int64 [size], from the attribute `labels` or a pass over all examples."""
        if not self.has_classes:
            return None
        declared = self.column("labels")
        if declared is None:
            return np.concatenate([self._read(rows)[TARGETS] for rows in self._passes()])
        if len(labels := splits.as_labels(declared, f"{self.name}, its labels")) != self.size:
            raise UserError(f"{self.name} has {self.size} examples and {len(labels)} labels; expected one for each.")
        return labels

    def everything(self, form: Preparation) -> dict[str, np.ndarray]:
        """Return all rows, checked: arrays [size, ...] by name; labels are int64 [size]."""
        found = {
            name: np.empty([self.size, *spec.shape], spec.dtype.as_numpy_dtype) for name, spec in self.specs.items()
        }
        if self.has_classes:
            found[TARGETS] = np.empty([self.size], np.int64)
        declared = self.labels() if self.has_classes and self.column("labels") is not None else None
        for rows in self._passes():
            for name, values in self.checked(rows, declared, form).items():
                found[name][rows] = values
        if form.peak is not None and found[INPUTS].dtype == np.uint8:
            check_pixels(found[INPUTS], self.name)
        return found

    def checked(self, rows: np.ndarray, labels: np.ndarray | None, form: Preparation) -> dict[str, np.ndarray]:
        """Return rows after checking that inputs are finite, and that targets equal their labels if these are known."""
        found = self._read(rows)
        check_rows(form, found[INPUTS], rows, self.name)
        if TARGET_IMAGES in found:
            check_rows(form, found[TARGET_IMAGES], rows, f"{self.name}, {TARGET_IMAGES}")
        if SAMPLE_WEIGHTS in found:
            check_row_weights(found[SAMPLE_WEIGHTS], rows, self.name)
        if labels is not None and len(wrong := np.flatnonzero(found[TARGETS] != labels[rows])):
            row = int(rows[wrong[0]])
            raise UserError(
                f"{self.name}, row {row}: target {found[TARGETS][wrong[0]]}, but its label was {labels[row]}; expected "
                "the same example whenever it is read. Fix the class that gives it, or its labels."
            )
        return found

    def _passes(self) -> Iterator[np.ndarray]:
        for start in range(0, self.size, ROWS_A_PASS):
            yield np.arange(start, min(start + ROWS_A_PASS, self.size))

    def _read(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        found = self._read_untyped(rows)
        return {**found, TARGETS: self._typed(found[TARGETS])}

    def _read_untyped(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return rows as new arrays [n, ...] by name, in the requested order."""
        shares = np.array_split(rows, min(self._tasks, len(rows)))
        try:
            tasks = [self._pool.submit(self._reads, share, self._formats, self._alike) for share in shares]
            parts = [task.result() for task in tasks]
        except BrokenProcessPool as error:
            raise UserError(
                f"A process of data.workers={self._workers} has ended: it ran out of memory, or its module cannot be "
                "imported. A script of your own needs `if __name__ == '__main__':` before what it runs."
            ) from error
        except UserError as error:
            raise UserError(f"{self.name}, {error}") from error
        return {name: np.concatenate([each[name] for each in parts]) for name in parts[0]}

    def _typed(self, targets: np.ndarray) -> np.ndarray:
        return (splits.as_labels if self.has_classes else splits.as_numbers)(targets, self.name)


def _check(split: str, source: Any, workers: int) -> None:
    check_choice("data.split", split, splits.SPLITS)
    check_integer("data.workers", workers, 0)
    if source is None:
        raise UserError(
            "data.source is null. Set +data.source._target_=<package.module.Class>, its arguments as "
            "+data.source.<name>=<value>, and plugins=[<package>]."
        )


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

    `source[row]` returns one example: inputs and target (its class, or other numbers for task=supervised), or a mapping
    with "inputs", "targets" and optionally more names; `source.gather(rows)` returns several, for rows int64 [n], as
    arrays [n, ...]. Rows are read by several threads, or by several processes with a copy each. A row must always give
    the same example (random changes belong in the `augment` group), with finite values and the shapes and dtypes of row
    0. Of the optional names, "sample_weights" is one number per example, 0 or more; "target_domain" (images of a second
    domain, for task=domain_adaptation) must have the shape and dtype of "inputs" and is prepared in the same way;
    others are left unchanged. The object may have `labels`, the class of every row, to avoid reading all examples for
    them, and `groups` or `keys`, for the splits that need them.
    """
    options = dict(locals())
    readers = {}
    for part, option in zip(splits.PARTS, ("source", "validation_source", "test_source"), strict=True):
        if (examples := options[option]) is not None:
            name = f"data.{option} ({type(examples).__name__})"
            readers[part] = ExampleReader(examples, name=name, threads=threads, workers=workers, classes=classes)
    return read_data("custom", readers, options, classes, class_names or ())


def read_data(
    name: str,
    readers: Mapping[str, ExampleReader],
    options: Mapping[str, Any],
    classes: int | None,
    class_names: Sequence[str],
) -> Data:
    """Return the splits of examples from readers, by part; missing ones are taken from the training examples."""
    train = readers["train"]
    for reader in readers.values():
        if reader.specs != train.specs:
            raise UserError(f"{reader.name} gives {_listed(reader)}; expected {_listed(train)}, as {train.name} gives.")
    spec = train.specs[INPUTS]
    if train.specs.get(TARGET_IMAGES, spec) != spec:
        raise UserError(
            f"{train.name} gives {_listed(train)}; expected {INPUTS} and {TARGET_IMAGES} of one dtype and shape, since "
            "both are prepared alike. Convert one of them."
        )
    form = input_form(tuple(spec.shape), np.dtype(spec.dtype.as_numpy_dtype), options, train.name)
    held = is_held(options["cache"], sum(reader.bytes for reader in readers.values()))
    sources = {part: _source(reader, form, held) for part, reader in readers.items()}
    labels = {readers[part].name: source.labels for part, source in sources.items()} if train.has_classes else {}
    count = splits.count_classes(labels, classes) if labels else 0
    rows = splits.hold_out(
        train.size, labels.get(train.name), options, readers, groups=train.column("groups"), keys=train.column("keys")
    )
    return splits.data_of_parts(name, sources, rows, preparation=form, classes=count, class_names=class_names)


def _source(reader: ExampleReader, form: Preparation, held: bool) -> Source:
    if held:
        check_fits(reader.bytes, reader.name, "Set data.cache=none.")
        return ArraySource(reader.everything(form), transform_of(form))
    labels = reader.labels()
    targets = reader.size if labels is None else labels  # HostRows holds labels, and reads other targets
    return HostRows(lambda rows: reader.checked(rows, labels, form), reader.specs, targets, transform_of(form))


def _listed(reader: ExampleReader) -> str:
    return ", ".join(f"{name} {spec.dtype.name} {list(spec.shape)}" for name, spec in reader.specs.items())
