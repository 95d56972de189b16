"""Errors of the store.

StoreError
├── StoreInputError          the caller's value or file is wrong (exit code 2)
│   └── NoTablesError        a database that holds no store, opened only to be read
└── StoreEnvironmentError    read-only, full, locked, unreachable, newer schema (exit code 3)
    └── RunBusyError         another live driver holds the run
"""


class StoreError(Exception):
    """Base of every error that the store raises on purpose."""


class StoreInputError(StoreError):
    """A value, a bundle or a database address from outside is wrong."""


class NoTablesError(StoreInputError):
    """A database without draftsmith's tables; it was left as it is."""


class StoreEnvironmentError(StoreError):
    """The database or the disk does not let the store do what was asked."""


class RunBusyError(StoreEnvironmentError):
    """The run is driven by another process that is still alive; the message names it."""
