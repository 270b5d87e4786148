"""Calibration: whether a network is right as often as it says."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Reliability:
    """Hold what came of the predictions, by their confidence: the probability of the class that was chosen.

    Attributes:
        edges: float64 [bins + 1], from 0 to 1; a bin holds its upper edge, not its lower one.
        counts: int64 [bins], examples.
        confidence: float64 [bins], mean confidence of a bin, 0 where it is empty.
        accuracy: float64 [bins], share that is right, 0 where it is empty.
    """

    edges: np.ndarray
    counts: np.ndarray
    confidence: np.ndarray
    accuracy: np.ndarray

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

    Args:
        confidence: float [examples], in (0, 1].
        correct: bool [examples].
        bins: M, at least 1.
    """
    edges = np.linspace(0.0, 1.0, bins + 1)
    place = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, bins - 1)
    counts = np.bincount(place, minlength=bins)
    sums = [np.bincount(place, weights=values.astype(np.float64), minlength=bins) for values in (confidence, correct)]
    mean_confidence, accuracy = (np.divide(each, counts, out=np.zeros(bins), where=counts > 0) for each in sums)
    return Reliability(edges, counts, mean_confidence, accuracy)


def brier_score(probabilities: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean over examples of sum_k (p_k - y_k)^2, from 0 to 2 (Brier 1950).

    Args:
        probabilities: float [examples, classes].
        labels: int [examples].
    """
    distance = probabilities.astype(np.float64, copy=True)
    distance[np.arange(len(labels)), labels] -= 1.0
    return float(np.mean(np.sum(distance**2, axis=1)))


def negative_log_likelihood(logits: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean of -log p of the true class, in nats.

    Args:
        logits: float [examples, classes].
        labels: int [examples].
    """
    wide = logits.astype(np.float64)
    shifted = wide - wide.max(axis=1, keepdims=True)
    true = shifted[np.arange(len(labels)), labels]
    return float(np.mean(np.log(np.exp(shifted).sum(axis=1)) - true))
