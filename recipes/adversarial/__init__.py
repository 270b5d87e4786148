"""Shared by recipes of adversarial networks: losses, groups of networks, and the quality of samples."""
