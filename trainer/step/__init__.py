"""How one optimizer step is built: forward, gradients, update ops, apply, projection, audit."""
