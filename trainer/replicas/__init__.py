"""Training on several devices or machines: replicas, and the messages between them."""
