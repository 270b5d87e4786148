"""What freezing entries is made of: where masks come from, which variables they cover, how values are held."""
