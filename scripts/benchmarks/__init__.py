"""What `scripts/benchmark.py` compares: each module that holds `CONTENDERS` gives some."""
