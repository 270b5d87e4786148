"""Data sources. `configs/data/` explains their arguments. Inputs are float32, class labels int64 starting at 0."""
