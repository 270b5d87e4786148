"""Trained networks as files for other programs: one writer and one loader for each format."""

from __future__ import annotations
