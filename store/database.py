"""Where the store lives: one SQLAlchemy engine, its transactions, and errors translated at that boundary."""

from __future__ import annotations


class Database:
    """An open, migrated database."""
