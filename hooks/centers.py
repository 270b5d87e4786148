"""Features of center loss, and pictures of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from hookline.hooks.graphs import select_layer
from hookline.trainer.errors import UserError
from hookline.trainer.graph import layer_input, layer_output

# Nine colours that stay apart for colour-blind eyes (Tol 2021, "Colour Schemes", scheme "muted"), and black.
TEN_COLOURS = (
    *((51, 34, 136), (136, 204, 238), (17, 119, 51), (221, 204, 119), (204, 102, 119)),
    *((170, 68, 153), (68, 170, 153), (136, 34, 85), (153, 153, 51), (20, 20, 20)),
)


@dataclass(frozen=True, eq=False)
class Projection:
    """Map features [..., d] to a plane."""

    origin: np.ndarray  # [d], what maps to the origin of the plane
    axes: np.ndarray  # [d, 2], the directions that become x and y
    share: float  # of the variance of the features that the plane shows, in [0, 1]

    def __call__(self, points: np.ndarray) -> np.ndarray:
        """Return points in the plane: [n, 2]."""
        return (points - self.origin) @ self.axes


def project_to_plane(features: np.ndarray) -> Projection:
    """Return a plane for features [n, d]: two dimensions as they are, more by their first two principal components.

    The largest entry of each component is positive, so that successive pictures do not flip.
    """
    features = features.astype(np.float64)
    width = features.shape[1]
    if width <= 2:
        return Projection(np.zeros(width), np.eye(width, 2), 1.0)
    origin = features.mean(axis=0)
    _, sizes, components = np.linalg.svd(features - origin, full_matrices=False)
    axes = np.zeros((width, 2))
    for column, component in enumerate(components[:2]):
        axes[:, column] = component * np.copysign(1.0, component[np.argmax(np.abs(component))])
    total = float(np.sum(sizes**2))
    return Projection(origin, axes, float(np.sum(sizes[:2] ** 2)) / total if total else 1.0)


WIDTH, HEIGHT = 1440, 1280  # drawn twice as large as shown: smooth edges
LEFT, TOP, SIDE = 128, 88, 1120  # the square that the points lie in
DOT, RING = 6.0, 18.0  # radii of examples and centers
MARGIN = 0.05  # of the range, around the outermost points
MOST_NUMBERED = 30  # with more centers than this, they are not numbered
MOST_LISTED = 20  # classes in the legend
BLACK, GREY, WHITE = (0, 0, 0), (110, 110, 110), (255, 255, 255)


def scatter_plot(points: np.ndarray, labels: np.ndarray, centers: np.ndarray, title: str) -> np.ndarray:
    """Return a picture of points in the colours of their classes, with the centers as numbered rings.

    Both axes have one scale. Points that are not finite are left out.
    """
    finite = np.isfinite(points).all(axis=1)
    points, labels = points[finite], labels[finite]
    shown = np.flatnonzero(np.isfinite(centers).all(axis=1))
    low, span = _range(np.concatenate([points, centers[shown]]))
    image = Image.new("RGB", (WIDTH, HEIGHT), WHITE)
    draw = ImageDraw.Draw(image)
    for place, label in zip(_to_pixels(points, low, span), labels.tolist(), strict=True):
        draw.circle(place, DOT, TEN_COLOURS[label % len(TEN_COLOURS)])
    _draw_centers(draw, _to_pixels(centers[shown], low, span), shown.tolist())
    _draw_frame(draw, low, span, title)
    _draw_legend(draw, np.unique(labels).tolist())
    image = image.resize((WIDTH // 2, HEIGHT // 2), Image.Resampling.BOX)
    return np.asarray(image, np.float32) / 255.0


def _range(points: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the lower corner and the side of a square around all points."""
    if not len(points):
        return np.array([-1.0, -1.0]), 2.0
    low, high = points.min(axis=0), points.max(axis=0)
    span = float((high - low).max()) * (1.0 + 2.0 * MARGIN) or 1.0
    return (low + high) / 2.0 - span / 2.0, span


def _to_pixels(points: np.ndarray, low: np.ndarray, span: float) -> list[tuple[float, float]]:
    relative = (points - low) / span
    return [(LEFT + SIDE * x, TOP + SIDE * (1.0 - y)) for x, y in relative.tolist()]


def _draw_centers(draw: ImageDraw.ImageDraw, places: Sequence[tuple[float, float]], labels: Sequence[int]) -> None:
    """Draw a ring around each center, through which its examples are seen, and the number of its class beside it."""
    for place in places:
        draw.circle(place, RING, outline=BLACK, width=4)
        draw.circle(place, RING - 4.0, outline=WHITE, width=2)
    for (x, y), label in zip(places, labels if len(labels) <= MOST_NUMBERED else [], strict=False):
        _text(draw, (x + RING, y - RING), str(label), 30, "lb", stroke_width=4, stroke_fill=WHITE)


def _draw_frame(draw: ImageDraw.ImageDraw, low: np.ndarray, span: float, title: str) -> None:
    bottom = TOP + SIDE
    draw.rectangle([LEFT, TOP, LEFT + SIDE, bottom], outline=GREY, width=2)
    _text(draw, (LEFT, TOP - 28), title, 32, "ls")
    for axis, corner in enumerate(low.tolist()):
        for value in _ticks(corner, corner + span):
            along = SIDE * (value - corner) / span
            x, y = (LEFT + along, bottom) if axis == 0 else (LEFT, bottom - along)
            draw.line([(x, y), (x, y + 10) if axis == 0 else (x - 10, y)], fill=GREY, width=2)
            place, anchor = ((x, y + 18), "mt") if axis == 0 else ((x - 18, y), "rm")
            _text(draw, place, f"{value:.4g}", 26, anchor)


def _ticks(low: float, high: float) -> list[float]:
    """Return about five round numbers within a range."""
    rough = (high - low) / 5.0
    power = 10.0 ** np.floor(np.log10(rough))
    step = power * next(each for each in (1.0, 2.0, 5.0, 10.0) if each * power >= rough)
    return [float(number) * step + 0.0 for number in range(int(np.ceil(low / step)), int(np.floor(high / step)) + 1)]


def _draw_legend(draw: ImageDraw.ImageDraw, labels: Sequence[int]) -> None:
    for row, label in enumerate(labels[:MOST_LISTED]):
        y = TOP + 24 + 52 * row
        draw.circle((LEFT + SIDE + 48, y), 14, TEN_COLOURS[label % len(TEN_COLOURS)])
        _text(draw, (LEFT + SIDE + 76, y), str(label), 30, "lm")
    if len(labels) > MOST_LISTED:
        place = LEFT + SIDE + 34, TOP + 24 + 52 * MOST_LISTED
        _text(draw, place, f"+ {len(labels) - MOST_LISTED}", 30, "lm")


def _text(
    draw: ImageDraw.ImageDraw, place: tuple[float, float], text: str, size: int, anchor: str, **style: Any
) -> None:
    draw.text(place, text, BLACK, ImageFont.load_default(size), anchor=anchor, **style)


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
    if not _learns(features):
        raise UserError(f"{where} depends on no trainable weight. Expected features that can learn: set layer.")
    return features


def _learns(features: Any) -> bool:
    """Return whether a layer with trainable weights is on the path from the model's input to a tensor."""
    waiting, seen = [features], set()
    while waiting:
        operation, index, _ = waiting.pop()._keras_history
        if getattr(operation, "trainable_variables", None):
            return True
        if (id(operation), index) not in seen:
            seen.add((id(operation), index))
            waiting += operation._inbound_nodes[index].input_tensors
    return False
