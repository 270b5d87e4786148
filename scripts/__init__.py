"""Commands over the other packages: each a thin script."""

from __future__ import annotations
