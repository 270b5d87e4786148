"""How a layer that is not of Keras says what it computes at inference, for files that are read without it.

A hook may put layers of its own into a network. Such a layer takes part in a packed file by a method of this name:

    def inference_op(self) -> dict[str, Any] | None

It returns the operation by which evaluation can be repeated, with JSON values for its arguments, or None where no
operation can. The operations are

    {"op": "identity"}                      the first of its inputs, as it is
    {"op": "sign"}                          +1 where x >= 0, and -1 elsewhere
    {"op": "round", "bits": k}              round(clip(x, 0, 1) n) / n, n = 2^k - 1, half to even
    {"op": "ternary", "threshold": d}       +1 where x > d, -1 where x < -d, 0 elsewhere

Nothing here knows a hook by name: any class with this method will do.
"""

from __future__ import annotations

from typing import Any

FIELDS = {"identity": (), "sign": (), "round": ("bits",), "ternary": ("threshold",)}
"""Arguments of each operation by which a layer may describe itself."""


def described_op(layer: Any) -> dict[str, Any] | None:
    """Return the operation by which a layer describes itself; None where it has none.

    Args:
        layer: any operation of a graph.

    Raises:
        ValueError: it returned something else.
    """
    describe = getattr(layer, "inference_op", None)
    found = describe() if callable(describe) else None
    if found is None:
        return None
    if found.get("op") not in FIELDS or set(found) != {"op", *FIELDS[found["op"]]}:
        raise ValueError(f"{type(layer).__name__}.inference_op returned {found}. Expected one of {FIELDS}.")
    return dict(found)
