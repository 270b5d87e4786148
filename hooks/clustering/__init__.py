"""What weight clustering is made of."""
