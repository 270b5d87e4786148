"""Predictions as a table or file."""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from hookline.scripts.command import csv_text
from hookline.trainer.errors import UserError, printable


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return probabilities, float64 of the same shape, that add up to 1 over the last axis."""
    shifted = logits.astype(np.float64)
    shifted -= shifted.max(axis=-1, keepdims=True)
    exponentials = np.exp(shifted)
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def rank(logits: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the likeliest classes and their probabilities, [examples, top]; of equal ones the lower label first."""
    labels = np.argsort(-logits.astype(np.float64), axis=1, kind="stable")[:, :top]
    return labels, np.take_along_axis(softmax(logits), labels, axis=1)


def name_classes(outputs: int, known: Sequence[str], given: Sequence[str]) -> tuple[str, ...]:
    """Return what the entries of the outputs are called."""
    names = tuple(given or known) or tuple(str(label) for label in range(outputs))
    if len(names) != outputs:
        raise UserError(f"Received {len(names)} class names for {outputs} outputs. Expected one for each.")
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UserError(f"class_names has '{twice}' more than once. Expected different names.")
    return names


DIGITS = 6
"""Of a probability in a file."""
SHOWN_OUTPUTS = 8


@dataclass(frozen=True)
class Predictions:
    """The predictions of all examples that could be read, in their order."""

    names: Sequence[str]  # what each example is called
    labels: np.ndarray | None  # int [examples, top]; None if the outputs are asked for
    values: np.ndarray  # probabilities [examples, top], or outputs [examples, outputs]
    classes: Sequence[str] = ()  # what each label is called, or each output

    def __iter__(self) -> Iterator[tuple[str, list[tuple[int, float]]]]:
        """Yield name, and label and value of each entry; the label of an output is its place."""
        for index, name in enumerate(self.names):
            values = self.values[index].astype(np.float32 if self.labels is None else np.float64)
            labels = range(len(values)) if self.labels is None else self.labels[index]
            yield name, [(int(label), float(value)) for label, value in zip(labels, values, strict=True)]


def as_csv(predictions: Predictions) -> str:
    """Return predictions as CSV with a line of names above."""
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
    """Return predictions as a JSON list, an object for each example."""
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


def print_whole(text: str) -> None:
    """Print text; a reader that leaves early (`| head`) is not a failure."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        with suppress(OSError, ValueError):  # a later flush at exit must not fail either
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
