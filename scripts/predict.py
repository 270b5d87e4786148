"""Predict with an exported network or a run.

python scripts/predict.py model=<export or run> images=<files> [key=value ...]

A packed file needs only NumPy, and Pillow if the examples are image files. Images are prepared like the run's data:
size, channels, range of values.

  model        exported file or directory from scripts/export.py, or the directory of a run
  images       an image, a folder, a pattern such as 'photos/*.png', several as [a.png,b.png] or as further arguments;
               - reads names from standard input; or an npz or npy file of examples in the form that the data had
  array        name of the array in an npz file; default: inputs, x_test, or the only one
  top          how many classes to list for each example, most likely first (3)
  outputs      true lists the network's outputs, such as logits or embeddings, instead of classes
  class_names  names instead of those in the export: [cat,dog], or a text file with one per line; with
               outputs=true, names of the outputs
  output       output file, .csv or .json; - prints CSV; default: print a table
  overwrite    true overwrites an existing output
  batch_size   examples per batch (64)
  checkpoint, network, plugins   for a run: best or last; its network (model); packages of code that it uses;
               plugins also for a .keras file with your own classes

Predictions are in the order of the images; in a folder, 2.png comes before 10.png.
Exit code: 0 done, 1 images that cannot be read were reported and skipped, 2 user error.
"""

from __future__ import annotations

import glob
import itertools
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, a script does not see its project

from hookline.deploy.formats import Predictor, open_model
from hookline.deploy.inference.card import Card
from hookline.deploy.inference.graph import ACTIVATIONS
from hookline.scripts.command import check_output, csv_text, make_main, parse_options, write_file
from hookline.train import DONE, FAILED, say
from hookline.trainer.errors import ARRAY_FAULTS, UserError, check_choice, one_line, printable, user_path
from hookline.trainer.files import open_file
from hookline.trainer.input.preparation import Preparation
from hookline.trainer.ops.probabilities import as_logits

SUFFIXES = (".csv", ".json")
STANDARD_OUTPUT = "-"


@dataclass
class Options:
    """The options of the command line."""

    model: str
    images: str = ""
    array: str | None = None
    top: int = 3
    outputs: bool = False
    class_names: Any = None
    output: str | None = None
    overwrite: bool = False
    batch_size: int = 64
    checkpoint: Literal["best", "last"] | None = None
    network: str = "model"
    plugins: list[str] = field(default_factory=list)
    paths: list[str] = field(default_factory=list, init=False)  # files to predict on


def parse(arguments: Sequence[str]) -> Options:
    """Return the options of a command line; arguments without a key are further images."""
    bare = [each for each in arguments if "=" not in each or os.path.exists(each)]
    options = parse_options([each for each in arguments if each not in bare], Options)
    options.paths = [file for path in (*_listed(options.images), *bare) for file in list_files(path)]
    if not options.paths:
        raise UserError("No images were given. Expected images=<files, folder, npz or npy>; see --help.")
    if options.output not in (None, STANDARD_OUTPUT):
        check_output("output", str(options.output), SUFFIXES, overwrite=options.overwrite)
    options.class_names = _read_names(options.class_names)
    return options


def _listed(text: str) -> list[str]:
    """Return the paths of a value such as "photos" or "[a.png,b.png]"."""
    if text.startswith("[") and text.endswith("]") and not os.path.exists(text):
        return [each.strip().strip("'\"") for each in text[1:-1].split(",") if each.strip()]
    return [text] if text else []


def _read_names(given: Any) -> list[str]:
    if given is None:
        return []
    if isinstance(given, str):
        try:
            lines = user_path(given, "class_names").read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"class_names={given} cannot be read. Expected a text file, or [cat,dog].") from error
        given = [line.strip() for line in lines if line.strip()]
    if not isinstance(given, list) or not given:
        raise UserError(f"Invalid class_names: {given!r}. Expected names such as [cat,dog], or a text file.")
    return [str(name) for name in given]


def _command(options: Options) -> int:
    model, card = open_model(
        options.model, network=options.network, checkpoint=options.checkpoint, plugins=options.plugins
    )
    if card is None:
        raise UserError(f"{options.model} has no card. Expected {Path(options.model).name}.json next to it.")
    size, skipped = options.batch_size, list[str]()
    if card.inputs:
        examples = find_several(options.paths, card.inputs, size)
    else:
        prepared = card.preparation or Preparation(card.shape)
        examples = find_examples(options.paths, prepared, size, skipped, array=options.array)
    found = predict(model, card, examples, options)
    for line in skipped:
        print(f"Left out: {one_line(line)}.", file=sys.stderr)
    if found is None:
        raise UserError(f"None of {len(options.paths)} images can be read. Expected readable image files.")
    if options.output not in (None, STANDARD_OUTPUT):
        path = user_path(str(options.output), "output")
        write_file(path, as_csv(found) if path.suffix == SUFFIXES[0] else as_json(found))
        print(f"{path}: {len(found.names):,} {'example' if len(found.names) == 1 else 'examples'}")
    else:
        say(as_table(found) if options.output is None else as_csv(found), end="")
    return FAILED if skipped else DONE


def predict(model: Predictor, card: Card, examples: Batches, options: Options) -> Predictions | None:
    """Return the predictions of all examples that can be read; None if none can."""
    names: list[str] = []
    parts: list[tuple[np.ndarray, ...]] = []
    classes: tuple[str, ...] = ()
    for called, inputs in examples:
        outputs, columns_of = joined(model(inputs), len(called))
        if not options.outputs and not card.classes:
            raise UserError(
                f"The outputs of {options.model} are not classes. Expected outputs=true, which lists the outputs as "
                "they are; class_names=<names> then names them."
            )
        if not parts and (options.class_names or not options.outputs):
            classes = name_classes(outputs.shape[1], card.classes, options.class_names)
        names += called
        parts.append((outputs,) if options.outputs else rank(as_logits(outputs, card.activation), options.top))
    if not parts:
        return None
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return Predictions(names, None if options.outputs else columns[0], columns[-1], classes or columns_of)


def joined(outputs: Any, size: int) -> tuple[Any, tuple[str, ...]]:
    """Return outputs, float32 [size, values], and the name of each value; several outputs are concatenated."""
    if isinstance(outputs, list | tuple):
        outputs = {f"output_{place}": each for place, each in enumerate(outputs)}
    named = outputs if isinstance(outputs, dict) else {"output": outputs}
    flat = {name: np.asarray(each, np.float32).reshape(size, -1) for name, each in named.items()}
    names = [f"{name}_{place}" for name, each in flat.items() for place in range(each.shape[1])]
    return np.concatenate(list(flat.values()), axis=1), tuple(names)


IMAGE_SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif")
ARRAY_SUFFIXES = (".npz", ".npy")
STANDARD_INPUT = "-"
KEYS = ("inputs", "x_test")
"""Arrays to take from an npz file that holds several, named as in `recipes/data/arrays.py`."""


Batches = Iterator[tuple[list[str], Any]]
"""Names of the examples, and prepared inputs, float32 [n, *shape], in a dict for several inputs."""


def find_examples(
    paths: Sequence[str], preparation: Preparation, size: int, skipped: list[str], *, array: str | None = None
) -> Batches:
    """Return the examples of image files, or of one npz or npy file, in batches.

    During iteration, `skipped` is extended by a line for each example that cannot be read.
    """
    arrays = [path for path in paths if path.lower().endswith(ARRAY_SUFFIXES)]
    if arrays and len(paths) > 1:
        raise UserError(f"Received {arrays[0]} together with other images. Expected one npz or npy file, or images.")
    if array is not None and not (arrays and arrays[0].lower().endswith(".npz")):
        raise UserError(f"array={array} received without an npz file. Expected images=<file>.npz, or no array.")
    if arrays:
        return _of_rows(_read_rows(user_path(arrays[0], "images"), array), preparation, size)
    if not preparation.takes_images:
        raise UserError(
            f"This network takes inputs of shape {list(preparation.shape)} that are not known to be made of pixels. "
            "Expected an npz or npy file of examples in place of images."
        )
    return _of_files(paths, preparation, size, skipped)


def list_files(path: str) -> list[str]:
    """Return the files that a path matches, in natural order: 2.png before 10.png."""
    if path == STANDARD_INPUT:
        names = [line for line in sys.stdin.read().splitlines() if line.strip()]
        if not names:
            raise UserError("images=- received, but the standard input names no file. Expected one name per line.")
        return names
    given = user_path(path, "images")
    if given.is_dir():
        inside = {each: each.relative_to(given).parts for each in given.rglob("*")}
        shown = [each for each, parts in inside.items() if not any(part.startswith(".") for part in parts)]
        found = [str(each) for each in shown if each.suffix.lower() in IMAGE_SUFFIXES and each.is_file()]
        if not found:
            raise UserError(f"The folder '{given}' holds no {', '.join(IMAGE_SUFFIXES)}. Expected images in it.")
        return sorted(found, key=natural_order)
    matching = [str(given)] if given.exists() else glob.glob(str(given), recursive=True)
    if not matching:
        raise UserError(f"images={path} does not exist. Expected an image, a folder, an npz or an npy file.")
    return sorted(matching, key=natural_order)


def natural_order(name: str) -> list[tuple[int, int, str]]:
    """Return a sort key that compares numbers in names by value."""
    parts = re.split(r"(\d+)", name)
    return [(0, int(part), part) if number % 2 else (1, 0, part) for number, part in enumerate(parts)]


def _of_files(files: Sequence[str], preparation: Preparation, size: int, skipped: list[str]) -> Batches:
    from hookline.recipes.data.images import UnreadableImage, decode_image, described

    def read(name: str) -> np.ndarray | str:
        try:
            with open_file(os.path.expanduser(name), follow=True) as file:
                return decode_image(file.read(), preparation)
        except (OSError, UnreadableImage) as error:
            return described(name, getattr(error, "strerror", None) or error)

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for start in range(0, len(files), size):
            names = files[start : start + size]
            read_in = dict(zip(names, pool.map(read, names), strict=False))
            skipped.extend(each for each in read_in.values() if isinstance(each, str))
            whole = [name for name in names if not isinstance(read_in[name], str)]
            if whole:
                yield whole, preparation.of_images(np.stack([read_in[name] for name in whole]))


def _of_rows(rows: np.ndarray, preparation: Preparation, size: int) -> Batches:
    for start in range(0, len(rows), size):
        part = np.asarray(rows[start : start + size])
        yield [str(start + row) for row in range(len(part))], preparation.of_arrays(part)


def find_several(paths: Sequence[str], inputs: Mapping[str, Preparation], size: int) -> Batches:
    """Yield the examples of an npz file for a network with several inputs, from arrays x_test_<name> or <name>."""
    if len(paths) != 1 or not paths[0].lower().endswith(".npz"):
        raise UserError(f"This network takes the inputs {', '.join(inputs)}. Expected images=<file>.npz with them.")
    path = user_path(paths[0], "images")
    rows = {name: _read_rows(path, None, (f"x_test_{name}", name)) for name in inputs}
    sizes = {len(each) for each in rows.values()}
    if len(sizes) > 1:
        raise UserError(f"'{path}' holds inputs of {sorted(sizes)} examples. Expected the same number for each.")
    for parts in zip(*(_of_rows(rows[name], each, size) for name, each in inputs.items()), strict=True):
        yield parts[0][0], {name: part for name, (_, part) in zip(inputs, parts, strict=True)}


def _read_rows(path: Path, array: str | None, keys: Sequence[str] = KEYS) -> np.ndarray:
    """Return the examples of a file; an npy file is memory-mapped."""
    try:
        if path.suffix.lower() == ".npy":
            rows = np.load(path, mmap_mode="r", allow_pickle=False)
        else:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
                rows = archive[_choose(path, list(archive), array, keys)]
    except ARRAY_FAULTS as error:
        if isinstance(error, UserError):
            raise
        raise UserError(
            f"'{path}' is not a readable file of plain arrays ({error}). Write it with numpy.savez."
        ) from error
    if not rows.ndim or not len(rows):
        raise UserError(f"'{path}' holds no example. Expected an array with an axis of examples.")
    return rows


def _choose(path: Path, names: Sequence[str], array: str | None, keys: Sequence[str]) -> str:
    if array is not None:
        return check_choice(f"array in '{path}'", array, names)
    found = [name for name in keys if name in names] or (list(names) if keys is KEYS else [])
    if len(found) != 1:
        wanted = "array=<name> to say which" if keys is KEYS else f"one of {' and '.join(keys)}"
        raise UserError(f"'{path}' holds {', '.join(names) or 'no array'}. Expected {wanted}.")
    return found[0]


def rank(logits: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the most likely classes and their probabilities, [examples, top]; ties go to the lower label."""
    wide = logits.astype(np.float64)
    labels = np.argsort(-wide, axis=1, kind="stable")[:, :top]
    return labels, np.take_along_axis(ACTIVATIONS["softmax"](wide), labels, axis=1)


def name_classes(outputs: int, known: Sequence[str], given: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the output entries: given, known, or numbered."""
    names = tuple(given or known) or tuple(str(label) for label in range(outputs))
    if len(names) != outputs:
        raise UserError(f"Received {len(names)} class names for {outputs} outputs. Expected one for each.")
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"class_names has '{twice}' more than once. Expected different names.")
    return names


DIGITS = 6
"""Decimal places of a probability in a file."""
SHOWN_OUTPUTS = 8


@dataclass(frozen=True)
class Predictions:
    """The predictions of all examples that could be read, in their order."""

    names: Sequence[str]  # name of each example
    labels: np.ndarray | None  # int [examples, top]; None with outputs=true
    values: np.ndarray  # probabilities [examples, top], or outputs [examples, outputs]
    classes: Sequence[str] = ()  # name of each label, or of each output

    def __iter__(self) -> Iterator[tuple[str, list[tuple[int, float]]]]:
        """Yield the name of each example, and its entries (label, value); the label of an output is its index."""
        for index, name in enumerate(self.names):
            values = self.values[index].astype(np.float32 if self.labels is None else np.float64)
            labels = range(len(values)) if self.labels is None else self.labels[index]
            yield name, [(int(label), float(value)) for label, value in zip(labels, values, strict=True)]


def as_csv(predictions: Predictions) -> str:
    """Return predictions as CSV with a header line."""
    if predictions.labels is None:
        heads: list[str] = list(predictions.classes)
        rows = [[name, *(repr(value) for _, value in found)] for name, found in predictions]
    else:
        numbers = range(1, predictions.values.shape[1] + 1)
        heads = [f"{what}_{number}" for number in numbers for what in ("class", "probability")]
        rows = [
            [name, *(text for label, p in found for text in (predictions.classes[label], f"{p:.{DIGITS}f}"))]
            for name, found in predictions
        ]
    return csv_text([["example", *heads], *rows])


def as_json(predictions: Predictions) -> str:
    """Return predictions as a JSON list with one object per example."""
    records: list[dict[str, Any]] = []
    for name, found in predictions:
        if predictions.labels is None:
            records.append({"example": name, "outputs": [value for _, value in found]})
        else:
            classes = [
                {"class": predictions.classes[label], "label": label, "probability": round(p, DIGITS)}
                for label, p in found
            ]
            records.append({"example": name, "predictions": classes})
    return json.dumps(records, indent=1) + "\n"


def as_table(predictions: Predictions) -> str:
    """Return predictions as lines with aligned columns."""
    rows = [["example", "outputs" if predictions.labels is None else "prediction"]]
    for name, found in predictions:
        if predictions.labels is None:
            more = " ..." if len(found) > SHOWN_OUTPUTS else ""
            cells = [" ".join(f"{value:.4g}" for _, value in found[:SHOWN_OUTPUTS]) + more]
        else:
            cells = [text for label, p in found for text in (printable(predictions.classes[label]), f"{100 * p:.1f} %")]
        rows.append([printable(name), *cells])
    columns = list(itertools.zip_longest(*rows, fillvalue=""))
    widths, lines = [max(map(len, column)) for column in columns], zip(*columns, strict=True)
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines) + "\n"


main = make_main(__doc__, parse, _command)

if __name__ == "__main__":
    sys.exit(main())
