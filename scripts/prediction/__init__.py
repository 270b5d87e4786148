"""What scripts/predict.py is made of."""

from __future__ import annotations
