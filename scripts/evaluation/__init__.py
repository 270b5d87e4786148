"""What scripts/evaluate.py is made of."""

from __future__ import annotations
