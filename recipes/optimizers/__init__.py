"""Keras optimizers that update a variable by one fused kernel."""

from __future__ import annotations
