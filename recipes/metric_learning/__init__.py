"""What learning a metric takes: distances, triplets, and measures of what lies near."""

from __future__ import annotations
