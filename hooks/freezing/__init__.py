"""What freezing of whole layers is made of."""
