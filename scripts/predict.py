"""Predict with an exported network or a run.

python scripts/predict.py model=<export or run> images=<files> [key=value ...]

With a packed file nothing but NumPy is imported, and Pillow where the examples are image files. Images are prepared as
the run's data was: size, channels, range of values.

  model        exported file or directory, as scripts/export.py writes it, or the directory of a run
  images       an image, a folder, a pattern such as 'photos/*.png', several as [a.png,b.png] or as further arguments;
               - reads names from the standard input; or an npz or npy file of examples as the data had them
  array        name of the array in an npz file; without it inputs, x_test, or the only one
  top          how many classes to list of each example, the likeliest first (3)
  outputs      true lists the network's outputs, such as logits or embeddings, in place of classes
  class_names  names in place of those that the export carries: [cat,dog], or a text file with one per line
  output       file that ends with .csv or .json; - prints CSV; without it a table
  overwrite    true writes over an output that exists
  batch_size   examples at a time (64)
  checkpoint, network, plugins   of a run: best or last; its network (model); packages of code that it uses
               plugins also of a .keras file that holds classes of your own

The order is that of the images; in a folder 2.png comes before 10.png.
Exit code: 0 done, 1 images that cannot be read were named and left out, 2 a mistake of the user.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # run as a file, a script does not see its project

from hookline.deploy.formats import Predictor, open_model
from hookline.deploy.inference.card import Card
from hookline.scripts.command import check_output, make_main, parse_options, write_file
from hookline.scripts.prediction import (
    Batches,
    Predictions,
    as_csv,
    as_json,
    as_table,
    find_examples,
    find_several,
    list_files,
    name_classes,
    print_whole,
    rank,
)
from hookline.train import DONE, FAILED
from hookline.trainer.errors import UserError, one_line, user_path
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
    paths: list[str] = field(default_factory=list, init=False)  # of what to predict on


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
        raise UserError(f"{options.model} has no card beside it. Expected its {Path(options.model).name}.json, too.")
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
        raise UserError(f"None of {len(options.paths)} images can be read. Give others.")
    if options.output not in (None, STANDARD_OUTPUT):
        path = user_path(str(options.output), "output")
        write_file(path, as_csv(found) if path.suffix == SUFFIXES[0] else as_json(found))
        print(f"{path}: {len(found.names):,} {'example' if len(found.names) == 1 else 'examples'}")
    else:
        print_whole(as_table(found) if options.output is None else as_csv(found))
    return FAILED if skipped else DONE


def predict(model: Predictor, card: Card, examples: Batches, options: Options) -> Predictions | None:
    """Return the predictions of all examples that can be read; None if none can."""
    names: list[str] = []
    parts: list[tuple[np.ndarray, ...]] = []
    classes: tuple[str, ...] = ()
    for called, inputs in examples:
        outputs, columns_of = joined(model(inputs), len(called))
        if not options.outputs and not parts:
            if not card.classes and not options.class_names:
                raise UserError(
                    f"The outputs of {options.model} are not classes. Expected outputs=true, which lists the outputs "
                    "as they are, or class_names=<names>."
                )
            classes = name_classes(outputs.shape[1], card.classes, options.class_names)
        names += called
        parts.append((outputs,) if options.outputs else rank(as_logits(outputs, card.activation), options.top))
    if not parts:
        return None
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return Predictions(names, None if options.outputs else columns[0], columns[-1], classes or columns_of)


def joined(outputs: Any, size: int) -> tuple[Any, tuple[str, ...]]:
    """Return outputs, float32 [size, values], and the name of each value; several outputs stand side by side."""
    if isinstance(outputs, list | tuple):
        outputs = {f"output_{place}": each for place, each in enumerate(outputs)}
    named = outputs if isinstance(outputs, dict) else {"output": outputs}
    flat = {name: np.asarray(each, np.float32).reshape(size, -1) for name, each in named.items()}
    names = [f"{name}_{place}" for name, each in flat.items() for place in range(each.shape[1])]
    return np.concatenate(list(flat.values()), axis=1), tuple(names)


main = make_main(__doc__, parse, _command)

if __name__ == "__main__":
    sys.exit(main())
