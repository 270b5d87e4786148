"""Networks that recipes train: plain Keras models."""

from __future__ import annotations
