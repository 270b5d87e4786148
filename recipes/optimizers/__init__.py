"""Keras optimizers that update a variable by one fused kernel."""
