"""Data sources. `configs/data/` explains their arguments. Inputs are float32, targets int64 from 0 on."""
