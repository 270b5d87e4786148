"""Augmentations: how training examples are changed at random, one idea per file."""
