"""The command line: the only composition root; here alone errors become exit codes."""
