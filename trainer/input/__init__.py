"""The input pipeline: data sources, disjoint splits, and batches addressed by step."""
