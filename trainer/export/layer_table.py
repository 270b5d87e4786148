"""What a plain model holds, layer by layer: entries, how many values they have, zeros."""

from __future__ import annotations

import keras
import numpy as np

from trainer.export.contents import Contents
from trainer.select import layer_paths

COLUMNS = ("layer", "weights", "values", "zeros", "sparsity", "float32 bytes")
OTHERS, TOTAL = "others", "total"


def layer_table(model: keras.Model, *, notes: tuple[str, ...] = (), lossy: bool = False) -> Contents:
    """Return a row for each layer with a matrix or a kernel, one for all other weights, and one for the whole.

    The values of a row are those that differ, over all entries of the layer: 2 where they are signs.

    Args:
        model: built.
        notes: lines below the table.
        lossy: whether the file rounds what the table shows.
    """
    arrays: dict[str, list[np.ndarray]] = {}
    seen: set[int] = set()
    for path, layer in layer_paths(model).items():
        for weight in () if isinstance(layer, keras.Model) else layer.weights:  # layers inside have their own rows
            if len(weight.shape) >= 2 and id(weight) not in seen:
                seen.add(id(weight))
                arrays.setdefault(path, []).append(weight.numpy())
    others = [weight.numpy() for weight in model.weights if id(weight) not in seen]
    rows = [_row(path, each) for path, each in arrays.items()]
    rows += [_row(OTHERS, others)] if others else []
    everything = [array for each in arrays.values() for array in each] + others
    return Contents(COLUMNS, (*rows, _row(TOTAL, everything)), notes, lossy)


def _row(name: str, arrays: list[np.ndarray]) -> tuple[str, ...]:
    entries = np.concatenate([np.ravel(each) for each in arrays]) if arrays else np.zeros(0, np.float32)
    zeros = int((entries == 0).sum())
    share = zeros / entries.size if entries.size else 0.0
    return (
        name,
        f"{entries.size:,}",
        f"{np.unique(entries).size:,}",
        f"{zeros:,}",
        f"{share:.4f}",
        f"{4 * entries.size:,}",
    )
