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


def reason_of(error: BaseException) -> str:
    """What another library's error says, in one line: its first paragraph, at most three lines."""
    lines: list[str] = []
    for line in str(error).strip().splitlines()[:3]:
        if not line.strip():
            break
        lines.append(" ".join(line.split()))
    return " ".join(lines).rstrip(".") or type(error).__name__
