"""Memory of a worker: what is in use, what ran out, what can be given back."""

from __future__ import annotations

import gc

import psutil
import torch


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the error says that memory ran out, on the host or the device."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError) and (
        "can't allocate memory" in text or "not enough memory" in text or "out of memory" in text
    )


def memory_in_use(device: str) -> int:
    """Bytes: the peak since ``reset_peak`` on a GPU; what is resident now on the CPU, where the
    system keeps no peak that could be reset.
    """
    if torch.device(device).type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return int(psutil.Process().memory_info().rss)


def reset_peak(device: str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def free_memory() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
