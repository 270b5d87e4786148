"""Colours of classes."""

from __future__ import annotations

# Nine colours that stay apart for colour-blind eyes (Tol 2021, "Colour Schemes", scheme "muted"), and black.
TEN_COLOURS = (
    (51, 34, 136),
    (136, 204, 238),
    (17, 119, 51),
    (221, 204, 119),
    (204, 102, 119),
    (170, 68, 153),
    (68, 170, 153),
    (136, 34, 85),
    (153, 153, 51),
    (20, 20, 20),
)


def class_colour(label: int) -> tuple[int, int, int]:
    """Return the colour of a class as red, green and blue in 0..255; classes beyond ten start again.

    Args:
        label: of the class, 0 or more.
    """
    return TEN_COLOURS[label % len(TEN_COLOURS)]
