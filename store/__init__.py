"""What a tuning run leaves behind: runs, trials, evidence, bundles. Knows nothing of the engine."""
