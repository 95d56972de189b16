"""What is told wherever plain torch runs in place of the C++ kernels."""

from __future__ import annotations

import torch

from draftsmith.kernels.backend import describe


def slower_note(device: torch.device) -> str:
    """Why the kernels on ``device`` run in their slower plain form, and what to do about it; empty
    where they do not. Only the CPU has the choice.
    """
    if device.type != "cpu":
        return ""
    info = describe()
    if info.backend == "cpp":
        return ""
    reason = " ".join(info.reason.split())  # a compiler's message has several lines
    fix = "unset it to use them" if info.switched_off else "draftsmith doctor shows each kernel"
    return f"plain torch runs in place of the C++ kernels, slower: {reason}; {fix}"
