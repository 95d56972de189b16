"""What a tuning run leaves behind: runs, trials, evidence and bundles. Knows nothing of the engine."""
