"""Parts of the center loss: where its features are, and how they are drawn."""
