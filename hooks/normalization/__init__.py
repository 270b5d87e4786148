"""What makes batch norm layers run on the fused kernel: which of them, and how they are called."""
