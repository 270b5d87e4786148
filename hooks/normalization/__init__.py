"""Running batch norm layers on the fused kernel: which of them, and how they are called."""
