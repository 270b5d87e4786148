"""What is trained: networks, objectives, evaluation."""

from __future__ import annotations
