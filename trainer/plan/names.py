"""Many variable names in few words."""

from __future__ import annotations

from collections.abc import Sequence

SHOWN = 12
"""How many names a short list shows."""


def list_names(names: Sequence[str], *, full: bool) -> str:
    """Return names as text: what is alike in several layers is said once, such as "kernel, bias of conv_1, conv_2".

    Args:
        names: such as ["conv_1/kernel", "conv_1/bias"], in order.
        full: every name as it is; otherwise a long list loses its middle, and says how many it lost.
    """
    return ", ".join(names) if full else "; ".join(group_names(names))


def group_names(names: Sequence[str], shown: int = SHOWN) -> list[str]:
    """Return texts for names that are alike in several layers, and for those that stand alone.

    Args:
        names: in order.
        shown: how many layers a text shows at most, at least 3.
    """
    leaves: dict[str, list[str]] = {}  # layer: what stands under it
    for name in names:
        layer, _, leaf = name.rpartition("/")
        leaves.setdefault(layer, []).append(leaf)
    alone = leaves.pop("", [])
    layers: dict[tuple[str, ...], list[str]] = {}  # what stands under layers: which have that
    for layer, under in leaves.items():
        layers.setdefault(tuple(under), []).append(layer)
    return [*shorten(alone, shown), *(_say(under, of, shown) for under, of in layers.items())]


def _say(leaves: Sequence[str], layers: Sequence[str], shown: int) -> str:
    if len(layers) == 1 and len(leaves) == 1:
        return f"{layers[0]}/{leaves[0]}"
    return f"{', '.join(shorten(leaves, shown))} of {', '.join(shorten(layers, shown))}"


def shorten(items: Sequence[str], shown: int = SHOWN) -> list[str]:
    """Return the first and the last items and, between them, how many others there are.

    Args:
        items: in order.
        shown: how many to show at most, at least 3.
    """
    if len(items) <= shown + 1:
        return list(items)
    last = shown // 3
    return [*items[: shown - last], f"... {len(items) - shown:,} more ...", *items[-last:]]
