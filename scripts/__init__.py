"""Commands over the rooms: each a thin script."""

from __future__ import annotations
