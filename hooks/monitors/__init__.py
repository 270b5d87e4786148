"""Hooks that only watch a run: what they show, write and ask for."""
