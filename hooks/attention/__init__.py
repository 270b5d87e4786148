"""Parts of the hook `bernoulli_attention`."""
