"""Where batches come from: sources, disjoint splits, and batches addressed by their step."""
