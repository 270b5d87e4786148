"""Backward passes put on layers and on ops."""
