"""How a step and a run proceed: the bottom layer. It knows the hook interface, but no hook and no recipe."""

from __future__ import annotations
