"""How a batch is cut into equal parts, for micro batches and for replicas: what works, and what to change if not."""

from __future__ import annotations

from hookline.trainer.errors import UserError


def batch_sizes_for(size: int, parts: int) -> str:
    """Return the nearest batch sizes that can be cut into parts, as settings."""
    lower = size - size % parts
    return " or ".join(f"trainer.batch_size={each}" for each in (lower, lower + parts) if each)


def check_class_parts(classes: int | None, parts: int, *, received: str, where: str, fewer: str) -> None:
    """Refuse parts of a batch that would hold one class, and so no pair of two: such a batch comes class by class."""
    if parts > 1 and classes is not None and (classes % parts or classes < 2 * parts):
        raise UserError(
            f"{received} received with trainer.classes_per_batch={classes}. Expected whole classes, and at least two "
            f"of them, {where}: use fewer {fewer}, or trainer.classes_per_batch={2 * parts} or another multiple of "
            f"{parts}."
        )
