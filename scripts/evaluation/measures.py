"""Measures of an evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hookline.scripts.prediction.results import rank, softmax


@dataclass(frozen=True)
class Reliability:
    """The outcome of predictions by confidence: the probability of the predicted class."""

    edges: np.ndarray  # float64 [bins + 1], from 0 to 1; a bin holds its upper edge, not its lower one
    counts: np.ndarray  # int64 [bins], examples
    confidence: np.ndarray  # float64 [bins], mean confidence of a bin, 0 where it is empty
    accuracy: np.ndarray  # float64 [bins], share that is right, 0 where it is empty

    @property
    def expected_error(self) -> float:
        """Return the expected calibration error (ECE): the mean of |accuracy - confidence|, weighed by examples."""
        return float(np.sum(self.counts / max(self.counts.sum(), 1) * np.abs(self.accuracy - self.confidence)))

    @property
    def largest_error(self) -> float:
        """Return the largest |accuracy - confidence| of a bin with examples (MCE)."""
        return float(np.max(np.abs(self.accuracy - self.confidence)[self.counts > 0], initial=0.0))


def reliability(confidence: np.ndarray, correct: np.ndarray, bins: int) -> Reliability:
    """Return how often predictions are right, in bins ((m - 1) / M, m / M] of equal width.

    Guo et al. 2017, "On Calibration of Modern Neural Networks", arXiv 1706.04599, section 2.
    """
    edges = np.linspace(0.0, 1.0, bins + 1)
    place = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, bins - 1)
    counts = np.bincount(place, minlength=bins)
    sums = [np.bincount(place, weights=values.astype(np.float64), minlength=bins) for values in (confidence, correct)]
    mean_confidence, accuracy = (np.divide(each, counts, out=np.zeros(bins), where=counts > 0) for each in sums)
    return Reliability(edges, counts, mean_confidence, accuracy)


def brier_score(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean over examples of sum_k (p_k - y_k)^2, from 0 to 2 (Brier 1950)."""
    distance = probabilities.astype(np.float64, copy=True)
    distance[np.arange(len(labels)), labels] -= 1.0
    return float(np.mean(np.sum(distance**2, axis=1)))


def negative_log_likelihood(logits: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean of -log p of the true class, in nats."""
    wide = logits.astype(np.float64)
    shifted = wide - wide.max(axis=1, keepdims=True)
    true = shifted[np.arange(len(labels)), labels]
    return float(np.mean(np.log(np.exp(shifted).sum(axis=1)) - true))


TOP = 5
LEAST_CLASSES_FOR_TOP = 10
"""With fewer classes, nearly all examples are among the first five."""


@dataclass(frozen=True)
class Measures:
    """The measures of a classifier on a split."""

    # accuracy, top_5_accuracy of many classes, macro averages over the classes with examples, those of calibration
    overall: dict[str, float]
    # in the order of their labels: class, precision (0 without predictions), recall (0 without examples), f1, support
    # (examples of it), predicted (how often)
    classes: list[dict[str, Any]]
    confusion: np.ndarray  # int64 [classes, classes]: examples of the row's class predicted as the column's
    reliability: Reliability  # of the predictions

    def as_json(self) -> dict[str, Any]:
        """Return the JSON values of the file."""
        bins = {name: values.tolist() for name, values in vars(self.reliability).items()}
        return {**vars(self), "confusion": self.confusion.tolist(), "reliability": bins}


def measure(logits: np.ndarray, labels: np.ndarray, names: Sequence[str], *, bins: int) -> Measures:
    """Return the measures of a classifier. Of equally likely classes the one with the lower label comes first."""
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
    columns = {
        "class": names,
        "precision": precision.tolist(),
        "recall": recall.tolist(),
        "f1": f1.tolist(),
        "support": support.tolist(),
        "predicted": counts.tolist(),
    }
    classes = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return Measures(overall, classes, confusion, bins_of)


def _top(logits: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    if logits.shape[1] < LEAST_CLASSES_FOR_TOP:
        return {}
    found, _ = rank(logits, TOP)
    return {f"top_{TOP}_accuracy": float(np.mean((found == labels[:, np.newaxis]).any(axis=1)))}
