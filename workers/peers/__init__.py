"""Other engines as resident processes, timed in turns with ours: each in a Python of its own."""
