"""Keras optimizers that update each variable with one fused kernel."""
