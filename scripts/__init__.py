"""Command-line scripts: thin wrappers over the other packages."""

from __future__ import annotations
