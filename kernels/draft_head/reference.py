"""Plain torch form of the largest logits of each row: the logits are made."""

import torch

from draftsmith.kernels.linear.reference import linear_reference
from draftsmith.kernels.top_k.reference import top_k_reference


def draft_head_reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    count: int,
    bias: torch.Tensor | None,
    softcap: float | None,
    with_log_sum: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """(values ``[M, count]``, their columns, log of the sum of exponentials ``[M]`` or None)."""
    logits = linear_reference(x, weight, bias).float()
    if softcap is not None:
        logits = logits.div_(softcap).tanh_().mul_(softcap)
    columns = top_k_reference(logits, count)
    return logits.gather(1, columns), columns, logits.logsumexp(1) if with_log_sum else None
