"""Training: our own runs against other ways to do the same work, and against the limit of the machine."""

from __future__ import annotations

from hookline.scripts.benchmarks.training.contenders import CONTENDERS

__all__ = ["CONTENDERS"]
