"""What `scripts/reproduce.py` is made of: targets, their runs, the conditions of these, rows, results, the table."""
