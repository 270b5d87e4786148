"""Recipes: the networks, objectives, data and evaluation to train with."""

from __future__ import annotations
