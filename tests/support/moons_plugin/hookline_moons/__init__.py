"""A plugin: two moons, a network of bumps, and noise on its weights."""
