"""Errors of the engine.

EngineError
├── EngineInputError        the user's value is wrong: names value, limit and fix (exit code 2)
│   └── UnsupportedError    a feature or checkpoint that the engine refuses by name
└── EngineEnvironmentError  this machine lacks something (exit code 3)
    └── CapacityError       cache rows or memory exhausted
"""


class EngineError(Exception):
    """Base of every error that the engine raises on purpose."""


class EngineInputError(EngineError):
    """A value from outside is wrong."""


class UnsupportedError(EngineInputError):
    """Asked for something that the engine does not do; the message names it."""


class EngineEnvironmentError(EngineError):
    """The machine lacks something that the engine needs."""


class CapacityError(EngineEnvironmentError):
    """No cache slot or row is left for what was asked."""
