"""Hookline: training recipes for TensorFlow and Keras 3, made of pluggable trainer hooks."""

from __future__ import annotations
