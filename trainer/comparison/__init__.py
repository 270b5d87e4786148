"""Runs side by side: reading them, grouping those that differ only in the seed, and the tables. Free of TensorFlow."""
