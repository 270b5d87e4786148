"""Parts of pruning: when masks change, which entries they keep, how many bytes are left."""
