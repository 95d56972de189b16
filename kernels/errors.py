"""Errors of the kernels.

KernelError
├── KernelInputError        shapes, dtypes or values that a kernel does not take
└── KernelEnvironmentError  this machine cannot run the implementation asked for
"""


class KernelError(Exception):
    """Base of every error that a kernel raises on purpose."""


class KernelInputError(KernelError):
    """An argument is outside what the kernel's docstring allows."""


class KernelEnvironmentError(KernelError):
    """The machine lacks something that the implementation needs."""
