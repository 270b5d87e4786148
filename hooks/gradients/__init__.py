"""Backward passes put on layers and on ops: which, where, and how they are checked."""

from __future__ import annotations
