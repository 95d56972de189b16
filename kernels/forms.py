"""The forms that the C++ kernels are compiled in: one for each set of instructions, best first.

A form is a set of compiler flags for the same sources. ``avx512`` holds a column of sixteen outputs
in one vector and up to sixteen rows of x in registers, ``avx2`` in two vectors and six rows; which
outputs go together is the same, so both have the same bits (``lanes.h``). Attention, norms and
activations use vectors of eight in both: their sums over lanes are part of the fixed order.

AVX-512's product of bf16 pairs (``vdpbf16ps``) is not used: it takes rows of x rounded to bf16 and
flushes denormals, where ours stay in fp32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from draftsmith.kernels.errors import KernelEnvironmentError

FormName = Literal["avx512", "avx2"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """``capability``: the processors it runs on, as torch reports them."""

    name: FormName
    title: str
    capability: str
    flags: tuple[str, ...]


_AVX2_FLAGS = ("-mavx2", "-mfma", "-mf16c")
FORMS = (
    Form(
        name="avx512",
        title="AVX-512",
        capability="AVX512",  # torch asks for F, VL, BW, DQ and FMA
        flags=(
            *_AVX2_FLAGS,
            *("-mavx512f", "-mavx512vl", "-mavx512bw", "-mavx512dq", "-DDRAFTSMITH_AVX512"),
        ),
    ),
    Form(name="avx2", title="AVX2", capability="AVX", flags=_AVX2_FLAGS),
)
NAMES: tuple[FormName, ...] = get_args(FormName)


def offered(capability: str) -> tuple[Form, ...]:
    """The forms that a processor can run, best first, by what
    ``torch.backends.cpu.get_cpu_capability()`` says of it ("AVX512", "AVX2", "DEFAULT", ...).
    """
    return tuple(form for form in FORMS if capability.startswith(form.capability))


def candidates(capability: str, wanted: FormName | None) -> Sequence[Form]:
    """The forms to try in turn, at least one: what the processor offers, or the ``wanted`` one
    alone. ``KernelEnvironmentError`` where the processor lacks it.
    """
    forms = offered(capability)
    if not forms:
        raise KernelEnvironmentError(f"the processor offers {capability}, AVX2 with FMA is needed")
    if wanted is None:
        return forms
    named = [form for form in forms if form.name == wanted]
    if not named:
        raise KernelEnvironmentError(
            f"the processor offers {capability}, at most the form {forms[0].name!r}"
        )
    return named
