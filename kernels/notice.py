"""What is told wherever the CPU kernels run in a slower form than they could."""

from __future__ import annotations

import torch

from draftsmith.kernels import build, forms
from draftsmith.kernels.backend import BackendInfo, describe

SEE = "draftsmith doctor shows each kernel"


def slower_note(device: torch.device) -> str:
    """Why the kernels on ``device`` run in plain torch, or in a lesser C++ form than the processor
    has, and what to do about it; empty where they do not. Only the CPU has the choice.
    """
    if device.type != "cpu":
        return ""
    info = describe()
    if info.backend == "cpp":
        return _lesser_form(info)
    fix = "unset it to use them" if info.switched_off else SEE
    reason = _one_line(info.reason)
    return f"plain torch runs in place of the C++ kernels, slower: {reason}; {fix}"


def _lesser_form(info: BackendInfo) -> str:
    if info.left_out:
        return f"the C++ kernels run in a slower form: {_one_line(info.left_out)}; {SEE}"
    asked = build.environment().kernels
    best = forms.offered(torch.backends.cpu.get_cpu_capability())[0]
    if asked is None or info.form == best.name:
        return ""
    return (
        f"the C++ kernels run in a slower form: DRAFTSMITH_KERNELS is {asked!r}, the processor has "
        f"{best.title}; unset it to use that"
    )


def _one_line(text: str) -> str:
    """A compiler's message has several lines."""
    return " ".join(text.split())
