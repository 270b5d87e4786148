"""One run on several devices or machines: replicas, and what they tell each other."""
