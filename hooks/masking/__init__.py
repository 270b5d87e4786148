"""Parts of freezing entries: where masks come from, which variables they cover, how values are held."""
