"""Parts of metric learning: distances, triplets, and measures of nearest neighbours."""

from __future__ import annotations
