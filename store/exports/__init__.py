"""One module an engine: how a bundle is written for it."""
