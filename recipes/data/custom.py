"""Examples that a user's own class gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from recipes.data.example_reader import ExampleReader
from recipes.data.hold_out import check_split, count_classes, data_of_parts, hold_out
from recipes.data.host_rows import HostRows
from recipes.data.input_form import InputForm, input_form
from recipes.data.machine_memory import check_fits, is_held
from trainer.errors import UserError
from trainer.input.data import Data
from trainer.input.source import ArraySource, Source
from trainer.precheck import prechecked

MEND = "give {name}, one for each example, as an attribute of the source."
NO_SOURCE = (
    "data.source is null; expected a class of yours. Set +data.source._target_=<package.module.Class>, its arguments "
    "as +data.source.<name>=<value>, and plugins=[<package>]."
)
PARTS = ("train", "validation", "test")


@dataclass(frozen=True)
class Plan:
    """Say what becomes of examples that are read one by one; the attributes are the arguments of `custom`."""

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
    finite. The object may have `labels`, the class of every row, so that these need not be read from all examples
    first; and `groups` or `keys` for those ways to split.

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
