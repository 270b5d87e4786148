"""What an evaluation leaves: a folder with JSON, tables and pictures, and a table on the screen."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.csv_text import csv_text
from scripts.evaluation.charts import write_confusion, write_reliability
from scripts.evaluation.measures import ClassMeasures, Measures
from trainer.errors import UserError, printable
from trainer.run.results import format_value, is_metric, is_total_loss, short_name

FILE_NAME = "evaluation.json"
MOST_CLASSES = 20
"""Classes with a line on the screen; of more, those that are found worst."""
SHARES = ("precision", "recall", "f1")


def write_evaluation(
    directory: Path, facts: Mapping[str, Any], measures: Measures | None, names: Sequence[str]
) -> list[str]:
    """Write a folder under another name and rename it, so that it is there as a whole or not at all.

    Args:
        directory: to write; one that exists is replaced.
        facts: what was evaluated, and the run's own metrics.
        measures: of a classifier; None for another network.
        names: of the classes.

    Returns:
        The names of the files.

    Raises:
        UserError: it cannot be written.
    """
    temporary = directory.with_name(f".{directory.name}.{os.getpid()}.tmp")
    replaced = directory.with_name(f".{directory.name}.{os.getpid()}.old")
    try:
        temporary.mkdir(parents=True)
        content = {**facts, **({} if measures is None else measures.as_json())}
        (temporary / FILE_NAME).write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        if measures is not None:
            _write_classes(measures, names, str(facts["title"]), temporary)
        if directory.exists():
            os.replace(directory, replaced)
        os.replace(temporary, directory)
    except OSError as error:
        raise UserError(f"{directory} cannot be written: {error.strerror}. Expected a place that can.") from error
    finally:
        for left in (temporary, replaced):
            shutil.rmtree(left, ignore_errors=True)
    return sorted(each.name for each in directory.iterdir())


def _write_classes(measures: Measures, names: Sequence[str], title: str, folder: Path) -> None:
    header = ["class", *SHARES, "support", "predicted"]
    rows = [[getattr(each, name if name != "class" else "name") for name in header] for each in measures.classes]
    (folder / "classes.csv").write_text(csv_text([header, *rows]), encoding="utf-8")
    confusion = [[name, *row] for name, row in zip(names, measures.confusion.tolist(), strict=True)]
    (folder / "confusion.csv").write_text(csv_text([["true \\ predicted", *names], *confusion]), encoding="utf-8")
    accuracy = f"{title}: accuracy {100 * measures.overall['accuracy']:.2f} %"
    write_confusion(measures.confusion, names, accuracy, folder / "confusion.png")
    error = measures.overall["expected_calibration_error"]
    write_reliability(measures.reliability, error, title, folder / "calibration.png")


def print_evaluation(
    facts: Mapping[str, Any], measures: Measures | None, directory: Path, files: Sequence[str]
) -> None:
    """Print what was measured, and where it lies.

    Args:
        facts: as for `write_evaluation`.
        measures: likewise.
        directory: that was written.
        files: in it.
    """
    from rich.table import Table

    from hooks.monitors.console import open_console

    console = open_console()
    console.print(str(facts["title"]), style="bold", soft_wrap=True)
    for name, value in _metrics(facts["metrics"]) if measures is None else _overall(measures.overall):
        console.print(f"{name:<28}{value}")
    if measures is not None:
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        for column in ("class", *SHARES, "support", "predicted"):
            table.add_column(column, justify="left" if column == "class" else "right", no_wrap=True)
        for each in _shown(measures.classes):
            shares = (f"{getattr(each, name):.4f}" for name in SHARES)
            table.add_row(printable(each.name), *shares, f"{each.support:,}", f"{each.predicted:,}")
        console.print()
        console.print(table)
        if len(measures.classes) > MOST_CLASSES:
            console.print(f"The {MOST_CLASSES} of {len(measures.classes)} classes with the lowest f1.")
    console.print(f"{directory}: {', '.join(files)}", soft_wrap=True)


def _overall(overall: Mapping[str, float]) -> list[tuple[str, str]]:
    return [
        (name.replace("_", " "), f"{value:,}" if isinstance(value, int) else format_value(value))
        for name, value in overall.items()
    ]


def _metrics(metrics: Mapping[str, float]) -> list[tuple[str, str]]:
    return [
        (short_name(name), format_value(value))
        for name, value in metrics.items()
        if is_metric(name) or is_total_loss(name)
    ]


def _shown(classes: Sequence[ClassMeasures]) -> list[ClassMeasures]:
    if len(classes) <= MOST_CLASSES:
        return list(classes)
    return sorted((each for each in classes if each.support), key=lambda each: each.f1)[:MOST_CLASSES]
