"""What runs inside a peer's Python. Nothing here imports draftsmith, nor a neighbour."""
