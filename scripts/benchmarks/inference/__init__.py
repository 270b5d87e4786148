"""Inference: packed binary networks on NumPy, against float and 8-bit networks of the same architecture."""

from __future__ import annotations

from hookline.scripts.benchmarks.inference.contenders import CONTENDERS

__all__ = ["CONTENDERS"]
