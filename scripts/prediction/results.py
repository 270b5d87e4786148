"""Predictions as a table or file."""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Sequence
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

    @property
    def columns(self) -> list[str]:
        """Return the names of the columns of a CSV file."""
        if self.labels is None:
            return ["example", *self.classes]
        numbers = range(self.values.shape[1])
        return ["example", *(f"{what}_{number + 1}" for number in numbers for what in ("class", "probability"))]

    def row(self, index: int) -> list[str]:
        """Return a row of a CSV file."""
        if self.labels is None:
            return [self.names[index], *(repr(float(value)) for value in self.values[index].astype(np.float32))]
        pairs = zip(self.labels[index], self.values[index], strict=True)
        return [self.names[index], *(text for label, p in pairs for text in (self.classes[label], f"{p:.{DIGITS}f}"))]

    def record(self, index: int) -> dict[str, Any]:
        """Return an entry of a JSON file."""
        if self.labels is None:
            return {"example": self.names[index], "outputs": [float(value) for value in self.values[index]]}
        pairs = zip(self.labels[index], self.values[index], strict=True)
        found = [
            {"class": self.classes[label], "label": int(label), "probability": round(float(p), DIGITS)}
            for label, p in pairs
        ]
        return {"example": self.names[index], "predictions": found}


def as_csv(predictions: Predictions) -> str:
    """Return predictions as CSV with a line of names above."""
    return csv_text([predictions.columns, *map(predictions.row, range(len(predictions.names)))])


def as_json(predictions: Predictions) -> str:
    """Return predictions as a JSON list, an object for each example."""
    return json.dumps([predictions.record(index) for index in range(len(predictions.names))], indent=1) + "\n"


def as_table(predictions: Predictions) -> str:
    """Return predictions as lines with aligned columns."""
    rows = [_shown(predictions, index) for index in range(len(predictions.names))]
    header = ["example", "outputs" if predictions.labels is None else "prediction"]
    columns = list(itertools.zip_longest(header, *rows, fillvalue=""))
    widths, lines = [max(map(len, column)) for column in columns], zip(*columns, strict=True)
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines) + "\n"


def _shown(predictions: Predictions, index: int) -> list[str]:
    example, values = printable(predictions.names[index]), predictions.values[index]
    if predictions.labels is None:
        more = " ..." if len(values) > SHOWN_OUTPUTS else ""
        return [example, " ".join(f"{value:.4g}" for value in values[:SHOWN_OUTPUTS]) + more]
    pairs = zip(predictions.labels[index], values, strict=True)
    return [
        example,
        *(text for label, p in pairs for text in (printable(predictions.classes[label]), f"{100 * p:.1f} %")),
    ]


def print_whole(text: str) -> None:
    """Print text; a reader that leaves early (`| head`) is not a failure."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        with suppress(OSError, ValueError):  # a later flush at exit must not fail either
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
