"""Read exported files and run packed networks, on NumPy alone: nothing here imports TensorFlow or Keras."""

from __future__ import annotations
