"""Evaluation of a network: its outputs for every example of a split, the metrics of these outputs, and the report."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import tensorflow as tf

from hookline.deploy.formats import open_model, put_in_place
from hookline.deploy.inference.graph import ACTIVATIONS
from hookline.deploy.plain_model import card_of
from hookline.scripts.command import csv_text, new_figure
from hookline.scripts.predict import rank
from hookline.trainer.config.build import build
from hookline.trainer.errors import UserError, printable, user_path
from hookline.trainer.input.batches import EvaluationBatches
from hookline.trainer.input.data import Data, Split
from hookline.trainer.input.preparation import Preparation, Range, different_ranges
from hookline.trainer.objective import SAMPLE_WEIGHTS, Batch
from hookline.trainer.ops.probabilities import are_probabilities, as_logits
from hookline.trainer.run.checkpoint import CheckpointStore
from hookline.trainer.run.finished import restore
from hookline.trainer.run.results import format_value, is_metric, is_total_loss, short_name
from hookline.trainer.run.state import data_fingerprint
from hookline.trainer.step.evaluate import Evaluator

if TYPE_CHECKING:
    from hookline.scripts.evaluate import Options

Outputs = Callable[[Batch], np.ndarray]


Evaluation = tuple[dict[str, Any], "Measures | None", Sequence[str], Sequence[str]]
"""Facts for the report; the measures of a classifier, otherwise None; class names; warnings."""


def _facts(options: Options, model: str, data: str, metrics: Mapping[str, float]) -> dict[str, Any]:
    title = f"{model} on {data}, {options.split} split"
    return {"title": title, "model": model, "data": data, "split": options.split, "metrics": metrics}


def evaluate_run(options: Options, config: Mapping[str, Any], other: Mapping[str, Any] | None) -> Evaluation:
    """Evaluate a run with all its hooks."""
    run = restore(options.run, dict(config), options.checkpoint)
    own = run.data
    data = own if other is None else build(other, group="data", kind=Data, plugins=options.plugins)
    if other is None:
        check_unchanged(options.run, own)
    learners = (each for each in run.trainer.objectives if each.class_losses)
    objective = next((each for each in learners if card_of(run, each.trains[0]).classes), None)
    names, warned = _names(data), []
    if other is not None:
        network = objective.trains[0] if objective else next(iter(run.trainer.networks))
        names = card_of(run, network).classes
        warned = check_data(data, own.model_shape, names, input_range(own))
    split = getattr(data, options.split)
    batches = EvaluationBatches(split, batch_size=options.batch_size, placement="host")
    metrics = Evaluator(run.trainer, batches.batch, batches.count).run(run.step)
    model = f"{user_path(options.run, 'run').resolve().name} ({run.checkpoint}, step {run.step:,})"
    facts = _facts(options, model, data.name, metrics)
    if objective is None:  # not a classifier, or without one output per class
        return facts, None, (), warned

    @tf.function(autograph=False)
    def logits(batch: Batch) -> tf.Tensor:  # computed as in the run's own evaluations, with all hooks
        forward = run.trainer.forward(tf.constant(run.step, tf.int64), batch, objective="", training=False)
        return tf.cast(objective.compute(forward, batch).outputs, tf.float32)

    outputs, labels, weights = collect(lambda batch: logits(batch).numpy(), split, options.batch_size)
    return facts, measure(outputs, labels, names, bins=options.bins, weights=weights), names, warned


def evaluate_model(options: Options, config: Mapping[str, Any], run: Path | None) -> Evaluation:
    """Evaluate an exported network on the data of a config, which must be that of `run` if it is given."""
    data = build(config, group="data", kind=Data, plugins=options.plugins)
    if run is not None:
        check_unchanged(str(run), data)
    model, card = open_model(options.model, network="model", checkpoint=None, plugins=options.plugins)
    names, warned = _names(data), []
    if card is not None:
        if not card.classes:
            raise UserError(
                f"The outputs of {options.model} are not classes. Expected run=<run>, whose recipe judges them."
            )
        shape = {name: each.shape for name, each in card.inputs.items()} or card.shape
        warned = check_data(data, shape, card.classes, input_range(card))
        names = card.classes if not data.class_names else names

    def predict(batch: Batch) -> np.ndarray:
        inputs: Any = tf.nest.map_structure(lambda each: each.numpy(), batch["inputs"])  # one array, or several
        return np.asarray(model(inputs), np.float32)

    outputs, labels, weights = collect(predict, getattr(data, options.split), options.batch_size)
    activation = card.activation if card is not None else "softmax" if are_probabilities(outputs) else None
    measures = measure(as_logits(outputs, activation), labels, names, bins=options.bins, weights=weights)
    return _facts(options, Path(options.model).name, data.name, {}), measures, names, warned


def check_unchanged(run: str, data: Data) -> None:
    """Raise UserError if the data of a run has changed since."""
    if has_changed(run, data):
        raise UserError(
            f"Data '{data.name}' has changed since {run} was trained on it: its rows or their contents differ, "
            "so the splits may overlap with the training data. Expected the original data, or, to evaluate on other "
            "data, data=<name> or data.path=<file>."
        )


def has_changed(run: str, data: Data) -> bool:
    """Return whether the data of a run has changed since; False without checkpoints, which hold the fingerprint."""
    store = CheckpointStore(user_path(run, "run") / "checkpoints")
    if not store.tags():
        return False
    return bool(store.load(store.best_or_last()).state["run"]["data"] != data_fingerprint(data.splits))


def collect(outputs: Outputs, split: Split, batch_size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return outputs [examples, classes], labels int64 [examples] and weights [examples] of a split, in order."""
    batches = EvaluationBatches(split, batch_size=batch_size, placement="host")
    found, labels, weights = [], [], []
    for index in range(batches.count):
        batch = batches.batch(tf.constant(index, tf.int64))
        real = batch["weights"].numpy() > 0  # the last batch is padded
        values = outputs(batch)
        if values.ndim != 2:
            raise UserError(f"The network returns outputs of shape {list(values.shape)}. Expected [batch, classes].")
        if not np.isfinite(values).all():
            raise UserError("The network returns NaN or infinite values, so it cannot be evaluated. Expected numbers.")
        found.append(values[real])
        labels.append(batch["targets"].numpy()[real])
        weights.append(batch.get(SAMPLE_WEIGHTS, batch["weights"]).numpy()[real])
    return np.concatenate(found), np.concatenate(labels).astype(np.int64), np.concatenate(weights)


def _names(data: Data) -> Sequence[str]:
    return data.class_names or tuple(str(label) for label in range(data.classes))


def check_data(data: Data, shape: Any, classes: Sequence[str], scaled: Range) -> list[str]:
    """Raise UserError if data does not fit a network; return warnings, one line each.

    `shape` is that of one input, a dict {input: shape} for several, or () for several inputs of unknown shape.
    """
    given, taken = (each if isinstance(each, dict) else list(each) for each in (data.model_shape, shape))
    if given != taken and ((given and taken) or not isinstance(given or taken, dict)):
        raise UserError(f"Data '{data.name}' has inputs {given}, the network takes {taken}.")
    if classes and len(classes) != data.classes:
        raise UserError(f"Data '{data.name}' has {data.classes} classes, and the network {len(classes)}.")
    numbered = [str(label) for label in range(data.classes)]
    theirs = list(data.class_names) or numbered
    has_numbers = numbered in (theirs, list(classes)) and {*theirs} != {*classes}  # one side has no names
    if classes and list(classes) != theirs and not has_numbers:
        first = next((a, b) for a, b in zip(classes, theirs, strict=True) if a != b)
        raise UserError(
            f"'{data.name}' calls a class '{first[1]}' that the network calls '{first[0]}'. Expected the same names in "
            "the same order."
        )
    told = different_ranges(input_range(data), scaled)
    return told and [
        f"Data '{data.name}' gives inputs {told[0]}, but the network was trained on inputs {told[1]}: set data.scale "
        "so that they are alike, or expect wrong predictions."
    ]


def input_range(data: Any) -> Range:
    """Return the smallest and the largest value of prepared pixels; None if inputs are not pixels."""
    made: Preparation | None = data.preparation
    return None if made is None else made.pixel_range


def reliability(
    confidence: np.ndarray, correct: np.ndarray, bins: int, weights: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Return the accuracy of predictions by confidence, the probability of the predicted class.

    Bins are ((m - 1) / M, m / M], of equal width (Guo et al. 2017, "On Calibration of Modern Neural Networks", arXiv
    1706.04599, section 2). Returned are edges [bins + 1] and, each [bins], the counts of examples, the sums of their
    weights, their mean confidence and their accuracy; 0 for empty bins.
    """
    edges = np.linspace(0.0, 1.0, bins + 1)
    place = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, bins - 1)
    counts = np.bincount(place, minlength=bins)
    weights = np.ones(len(place)) if weights is None else weights
    total, *sums = (np.bincount(place, weights * each, bins) for each in (np.ones(len(place)), confidence, correct))
    mean_confidence, accuracy = (np.divide(each, total, out=np.zeros(bins), where=total > 0) for each in sums)
    return {"edges": edges, "counts": counts, "weights": total, "confidence": mean_confidence, "accuracy": accuracy}


def calibration_errors(bins: Mapping[str, np.ndarray]) -> tuple[float, float]:
    """Return the expected calibration error (ECE), and the maximum calibration error (MCE) over non-empty bins."""
    apart, weights = np.abs(bins["accuracy"] - bins["confidence"]), bins["weights"]
    return float(np.average(apart, weights=weights)), float(apart.max())


TOP = 5


@dataclass(frozen=True)
class Measures:
    """The measures of a classifier on a split."""

    # accuracy, top_5_accuracy with 10 or more classes, macro averages over classes with examples, calibration errors
    overall: dict[str, float]
    # in label order: class, precision (0 without predictions), recall (0 without examples), f1, support (number of
    # examples), predicted (number of predictions)
    classes: list[dict[str, Any]]
    confusion: np.ndarray  # int64 [classes, classes]: examples of the row's class predicted as the column's
    reliability: dict[str, np.ndarray]  # see `reliability`


def measure(
    logits: np.ndarray, labels: np.ndarray, names: Sequence[str], *, bins: int, weights: np.ndarray | None = None
) -> Measures:
    """Return the measures of a classifier from logits [examples, classes]; means are weighted, counts are not.

    Ties between equally likely classes go to the lower label.
    """
    if logits.shape[1] != len(names):
        raise UserError(f"The network returns {logits.shape[1]} outputs for {len(names)} classes. Expected one each.")
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

    def mean(values: np.ndarray) -> float:
        return float(np.average(values, weights=weights))

    known, rows = np.arange(len(names)), np.arange(len(labels))
    weights = np.ones(len(labels)) if weights is None else weights.astype(np.float64)
    predicted = logits.argmax(axis=1)
    log_probabilities = ACTIVATIONS["log_softmax"](logits.astype(np.float64))
    probabilities = np.exp(log_probabilities)
    confusion = confusion_matrix(labels, predicted, labels=known)
    precision, recall, f1, support = precision_recall_fscore_support(
        labels, predicted, labels=known, sample_weight=weights, zero_division=0
    )
    calibration = reliability(probabilities[rows, predicted], predicted == labels, bins, weights)
    expected_error, largest_error = calibration_errors(calibration)
    top = {}
    if len(names) >= 10:  # with fewer, nearly every label is in the top five
        found, _ = rank(logits, TOP)
        top = {f"top_{TOP}_accuracy": mean((found == labels[:, np.newaxis]).any(axis=1))}
    seen = support > 0  # sum of weights; the recall of a class without examples is undefined
    overall = {
        "examples": len(labels),
        "accuracy": mean(predicted == labels),
        **top,
        "macro_precision": float(precision[seen].mean()),
        "macro_recall": float(recall[seen].mean()),
        "macro_f1": float(f1[seen].mean()),
        "negative_log_likelihood": mean(-log_probabilities[rows, labels]),
        "brier_score": mean(((probabilities - np.eye(len(names))[labels]) ** 2).sum(axis=1)),
        "expected_calibration_error": expected_error,
        "largest_calibration_error": largest_error,
    }
    columns = {
        "class": names,
        "precision": precision.tolist(),
        "recall": recall.tolist(),
        "f1": f1.tolist(),
        "support": confusion.sum(axis=1).tolist(),
        "predicted": confusion.sum(axis=0).tolist(),
    }
    classes = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return Measures(overall, classes, confusion, calibration)


MOST_NUMBERED = 25
"""Largest number of classes with counts in the picture."""
MOST_NAMED = 60
"""Largest number of classes with names beside the picture."""
CELL, LEAST, LARGEST = 0.42, 4.5, 14.0
"""Size of a class, and limits of the size of the picture, in inches."""
BAR, LESS, MORE, LINE = "#1b6ca8", "#8fc1a9", "#e39ba5", "#555555"
LONGEST_NAME = 18


def write_confusion(confusion: np.ndarray, names: Sequence[str], title: str, path: Path) -> None:
    """Write a confusion matrix as a PNG file; each row (true class) is colored by the shares of predicted classes."""
    side = min(max(LEAST, CELL * len(names) + 2.0), LARGEST)
    figure = new_figure(side + 0.8, side)
    small = 9.0 if confusion.max(initial=0) < 1000 and len(confusion) <= 12 else 7.0
    axes = figure.subplots()
    shares = confusion / np.maximum(confusion.sum(axis=1, keepdims=True), 1)
    image = axes.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0, interpolation="nearest")
    figure.colorbar(image, ax=axes, shrink=0.8, label="share of the true class")
    if len(names) <= MOST_NUMBERED:
        for (row, column), count in np.ndenumerate(confusion):
            if count:
                color = "white" if shares[row, column] > 0.5 else "black"
                axes.text(column, row, f"{count:,}", ha="center", va="center", color=color, fontsize=small)
    ticks = range(len(names)) if len(names) <= MOST_NAMED else ()
    shown = [_short(names[each]) for each in ticks]
    long = max(map(len, shown), default=0) > 3
    axes.set_xticks(list(ticks), shown, rotation=90 if long else 0, fontsize=8)
    axes.set_yticks(list(ticks), shown, fontsize=8)
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    axes.set_title(_written(title), fontsize=10, loc="left")
    figure.savefig(path, dpi=110, format="png")


def write_reliability(bins: Mapping[str, np.ndarray], error: float, title: str, path: Path) -> None:
    """Write a reliability diagram as a PNG file: accuracy by confidence, gap to the diagonal, examples per bin."""
    figure = new_figure(6.0, 6.0)
    upper, lower = figure.subplots(2, 1, height_ratios=(3, 1), sharex=True)
    edges, counts, confidence, accuracy = (bins[key] for key in ("edges", "counts", "confidence", "accuracy"))
    used = counts > 0
    left, confidence, accuracy = edges[:-1][used], confidence[used], accuracy[used]
    bar = {"width": np.diff(edges)[used], "align": "edge", "edgecolor": "white", "linewidth": 0.5}
    upper.bar(left, np.minimum(accuracy, confidence), color=BAR, label="right as often as it says", **bar)
    upper.bar(left, np.maximum(accuracy - confidence, 0), bottom=confidence, color=LESS, label="more often", **bar)
    upper.bar(left, np.maximum(confidence - accuracy, 0), bottom=accuracy, color=MORE, label="less often", **bar)
    upper.plot([0, 1], [0, 1], "--", color=LINE, linewidth=1)
    upper.set_ylabel("accuracy")
    upper.set_xlim(0, 1)
    upper.set_ylim(0, 1)
    upper.set_title(f"{_written(title)}\nexpected calibration error {100 * error:.2f} %", fontsize=10, loc="left")
    upper.legend(fontsize=8, frameon=False, loc="upper left")
    lower.bar(left, counts[used], color=BAR, **bar)
    lower.set_ylabel("examples")
    lower.set_xlabel("confidence")
    for axes in (upper, lower):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
    figure.savefig(path, dpi=110, format="png")


def _short(name: str) -> str:
    shown = printable(name)
    return _written(shown if len(shown) <= LONGEST_NAME else f"{shown[: LONGEST_NAME - 3]}...")


def _written(text: str) -> str:
    """Escape a text so that Matplotlib does not render it as a formula."""
    return printable(text).replace("$", r"\$")


FILE_NAME = "evaluation.json"
MOST_CLASSES = 20
"""Largest number of classes that are printed; of more, only the worst."""
SHARES, COUNTS = ("precision", "recall", "f1"), ("support", "predicted")


def write_evaluation(
    directory: Path, facts: Mapping[str, Any], measures: Measures | None, names: Sequence[str]
) -> list[str]:
    """Write the folder atomically, under a temporary name first; return the names of its files."""
    with put_in_place(directory) as temporary:
        temporary.mkdir()
        content = dict(facts)
        if measures is not None:
            bins = {name: values.tolist() for name, values in measures.reliability.items()}
            content |= {**vars(measures), "confusion": measures.confusion.tolist(), "reliability": bins}
            rows = [list(measures.classes[0]), *(each.values() for each in measures.classes)]
            (temporary / "classes.csv").write_text(csv_text(rows), encoding="utf-8")
            rows = [[name, *row] for name, row in zip(names, measures.confusion.tolist(), strict=True)]
            heads = ["true \\ predicted", *names]
            (temporary / "confusion.csv").write_text(csv_text([heads, *rows]), encoding="utf-8")
            title, overall = str(facts["title"]), measures.overall
            accuracy = f"{title}: accuracy {100 * overall['accuracy']:.2f} %"
            write_confusion(measures.confusion, names, accuracy, temporary / "confusion.png")
            error = overall["expected_calibration_error"]
            write_reliability(measures.reliability, error, title, temporary / "calibration.png")
        (temporary / FILE_NAME).write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return sorted(each.name for each in directory.iterdir())


def print_evaluation(
    facts: Mapping[str, Any], measures: Measures | None, directory: Path, files: Sequence[str]
) -> None:
    """Print the measures and where they were written."""
    from hookline.hooks.monitors.console import TextTable, open_console, show

    console = open_console()
    console.print(str(facts["title"]), style="bold", soft_wrap=True)
    metrics = facts["metrics"].items()
    shown = {short_name(name): value for name, value in metrics if is_metric(name) or is_total_loss(name)}
    if measures is not None:
        shown = {name.replace("_", " "): value for name, value in measures.overall.items()}
    width = max([28, *(len(name) + 2 for name in shown)])
    for name, value in shown.items():
        console.print(f"{name:<{width}}{f'{value:,}' if isinstance(value, int) else format_value(value)}")
    if measures is not None:
        title, classes = "Classes", measures.classes
        if len(classes) > MOST_CLASSES:
            title = f"The {MOST_CLASSES} of {len(classes)} classes with the lowest f1"
            classes = sorted((each for each in classes if each["support"]), key=lambda each: each["f1"])[:MOST_CLASSES]
        cells = [[f"{each[name]:.4f}" for name in SHARES] + [f"{each[name]:,}" for name in COUNTS] for each in classes]
        rows = [(each["class"], *row) for each, row in zip(classes, cells, strict=True)]
        console.print()
        show(console, TextTable(title, ("class", *SHARES, *COUNTS), rows))
    console.print(f"{directory}: {', '.join(files)}", soft_wrap=True)
