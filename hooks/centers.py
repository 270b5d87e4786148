"""Features of center loss, and pictures of them."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from hookline.hooks.graphs import select_layer
from hookline.trainer.errors import UserError
from hookline.trainer.graph import layer_input, layer_output


def plane_axes(features: np.ndarray) -> tuple[np.ndarray, float]:
    """Return axes [d, 2] to draw features [n, d] along (principal components if d > 2), and their share of variance."""
    width = features.shape[1]
    if width <= 2:
        return np.eye(width, 2), 1.0
    centered = features.astype(np.float64) - features.mean(axis=0)
    _, sizes, components = np.linalg.svd(centered, full_matrices=False)
    axes = np.zeros((width, 2))
    for column, component in enumerate(components[:2]):  # signs are such that successive pictures do not flip
        axes[:, column] = component * np.copysign(1.0, component[np.argmax(np.abs(component))])
    total = float(np.sum(sizes**2))
    return axes, float(np.sum(sizes[:2] ** 2)) / total if total else 1.0


MOST_NUMBERED, MOST_LISTED = 30, 20  # with more centers they are not numbered, with more classes there is no legend


def scatter_plot(points: np.ndarray, labels: np.ndarray, centers: np.ndarray, title: str) -> np.ndarray:
    """Return a picture of points in the colours of their classes, with the centers as numbered rings."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 6.4), layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_subplot(title=title)
    axes.set_aspect("equal", adjustable="datalim")
    for label in np.unique(labels):
        horizontal, vertical = points[labels == label].T
        axes.scatter(horizontal, vertical, s=6, color=f"C{label % 10}", label=str(label))
    axes.scatter(centers[:, 0], centers[:, 1], s=120, facecolors="none", edgecolors="black", linewidths=1.5)
    for label, place in enumerate(centers if len(centers) <= MOST_NUMBERED else ()):
        axes.annotate(str(label), place, (6, 6), textcoords="offset points", fontweight="bold")
    if len(np.unique(labels)) <= MOST_LISTED:
        figure.legend(loc="outside right upper", markerscale=3)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba(), np.float32)[..., :3] / 255.0


def find_features(model: keras.Model, pattern: str | None) -> Any:
    """Return the tensor [batch, d] of a model's own graph that holds the features."""
    if pattern is None:
        dense = [layer for layer in model.layers if isinstance(layer, keras.layers.Dense)]
        if not dense:
            raise UserError(
                f"The model '{model.name}' has no dense layer of its own. Expected layer to name one whose output the "
                f"features are: {', '.join(layer.name for layer in model.layers)}."
            )
        layer = dense[-1]  # a functional model lists its layers in the order of its graph
        features, where = layer_input(model, layer), f"The input of the layer '{layer.name}'"
    else:
        layer = select_layer(model, pattern)
        features, where = layer_output(model, layer), f"The output of the layer '{layer.name}'"
    if len(features.shape) != 2 or features.shape[-1] is None:
        raise UserError(
            f"{where} has the shape {tuple(features.shape)}. Expected features [batch, d]: set layer to a later one."
        )
    return features
