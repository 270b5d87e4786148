"""The training step and the run: the bottom layer, which knows the hook interface but no particular hook or recipe."""

from __future__ import annotations
