"""Data sets that a run can name: each function here returns checked splits."""
