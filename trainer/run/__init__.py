"""How a run proceeds: chunks, reports, evaluation, checkpoints, the run directory."""
