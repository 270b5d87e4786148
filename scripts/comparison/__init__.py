"""Runs side by side: how they are read, compared, printed and drawn."""
