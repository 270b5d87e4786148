"""What recipes of adversarial networks share: losses, groups of networks, and how good samples are."""
