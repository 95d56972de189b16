"""One module a revision, never edited after a release."""
