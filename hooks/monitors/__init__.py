"""Hooks that only watch a run: they show, write and make requests."""
