"""What `scripts/compare.py` writes beside its tables: a CSV file, and a chart of curves."""
