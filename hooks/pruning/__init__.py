"""What pruning is made of: when masks change, which entries they keep, what is left in bytes."""
