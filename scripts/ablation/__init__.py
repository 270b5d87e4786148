"""What `scripts/ablate.py` is made of: the variants of a recipe, which of them can run, and their jobs."""
