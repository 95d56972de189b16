"""Errors of the workers.

WorkerError
├── WorkerInputError         the user's value is wrong: names value, limit and fix (exit code 2)
└── WorkerEnvironmentError   this machine or cluster lacks something, or died (exit code 3)

A job that fails is no error: it is a ``MeasureResult`` with its status and reason.
"""


class WorkerError(Exception):
    """Base of every error that the workers raise on purpose."""


class WorkerInputError(WorkerError):
    """A value from outside is wrong, or can never be met."""


class WorkerEnvironmentError(WorkerError):
    """The machine or the cluster lacks what the workers need."""
