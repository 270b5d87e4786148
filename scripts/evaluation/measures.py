"""How good a classifier is: overall, class by class, and how far its probabilities can be believed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scripts.evaluation.calibration import Reliability, brier_score, negative_log_likelihood, reliability
from scripts.prediction.ranking import rank, softmax

TOP = 5
LEAST_CLASSES_FOR_TOP = 10
"""Of fewer, nearly all are among the first five."""


@dataclass(frozen=True)
class ClassMeasures:
    """Hold the measures of a class.

    Attributes:
        name: of the class.
        precision: share of its predictions that are right; 0 where there is none.
        recall: share of its examples that are found; 0 where there is none.
        f1: their harmonic mean.
        support: examples of it.
        predicted: how often it was predicted.
    """

    name: str
    precision: float
    recall: float
    f1: float
    support: int
    predicted: int


@dataclass(frozen=True)
class Measures:
    """Hold the measures of a classifier on a split.

    Attributes:
        overall: by name: accuracy, top_5_accuracy of many classes, macro averages over the classes
            with examples, and those of calibration.
        classes: in the order of their labels.
        confusion: int64 [classes, classes]: examples of the class of the row that were taken for that of the column.
        reliability: of the predictions.
    """

    overall: dict[str, float]
    classes: tuple[ClassMeasures, ...]
    confusion: np.ndarray
    reliability: Reliability

    def as_json(self) -> dict[str, Any]:
        """Return the JSON values of the file."""
        bins = self.reliability
        return {
            "overall": self.overall,
            "classes": [
                {
                    "class": each.name,
                    "precision": each.precision,
                    "recall": each.recall,
                    "f1": each.f1,
                    "support": each.support,
                    "predicted": each.predicted,
                }
                for each in self.classes
            ],
            "confusion": self.confusion.tolist(),
            "reliability": {
                "edges": bins.edges.tolist(),
                "counts": bins.counts.tolist(),
                "confidence": bins.confidence.tolist(),
                "accuracy": bins.accuracy.tolist(),
            },
        }


def measure(logits: np.ndarray, labels: np.ndarray, names: Sequence[str], *, bins: int) -> Measures:
    """Return the measures of a classifier. Of equally likely classes the one with the lower label comes first.

    Args:
        logits: float [examples, classes].
        labels: int [examples], in [0, classes).
        names: of the classes.
        bins: of the reliability diagram.
    """
    from sklearn.metrics import accuracy_score, confusion_matrix, precision_recall_fscore_support

    known = np.arange(len(names))
    predicted = logits.argmax(axis=1)
    probabilities = softmax(logits)
    confusion = confusion_matrix(labels, predicted, labels=known)
    precision, recall, f1, support = precision_recall_fscore_support(labels, predicted, labels=known, zero_division=0)
    bins_of = reliability(probabilities[np.arange(len(labels)), predicted], predicted == labels, bins)
    seen = support > 0  # a class without examples has no recall that could be averaged
    overall = {
        "examples": len(labels),
        "accuracy": float(accuracy_score(labels, predicted)),
        **_top(logits, labels),
        "macro_precision": float(precision[seen].mean()),
        "macro_recall": float(recall[seen].mean()),
        "macro_f1": float(f1[seen].mean()),
        "negative_log_likelihood": negative_log_likelihood(logits, labels),
        "brier_score": brier_score(probabilities, labels),
        "expected_calibration_error": bins_of.expected_error,
        "largest_calibration_error": bins_of.largest_error,
    }
    counts = confusion.sum(axis=0)
    classes = tuple(
        ClassMeasures(name, float(p), float(r), float(f), int(n), int(count))
        for name, p, r, f, n, count in zip(names, precision, recall, f1, support, counts, strict=True)
    )
    return Measures(overall, classes, confusion, bins_of)


def _top(logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    if logits.shape[1] < LEAST_CLASSES_FOR_TOP:
        return {}
    found, _ = rank(logits, TOP)
    return {f"top_{TOP}_accuracy": float(np.mean((found == labels[:, np.newaxis]).any(axis=1)))}
