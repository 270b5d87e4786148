"""Recipes: the networks, objectives, data and evaluation to train with."""
