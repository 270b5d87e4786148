"""Parts of attention by a Bernoulli gate."""
