"""How a step and a run proceed: the ground floor. Knows the hook interface, no hook and no recipe."""

from __future__ import annotations
