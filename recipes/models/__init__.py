"""Networks that recipes train: plain Keras models. `configs/model/` explains their arguments."""

from __future__ import annotations
