"""Token forcing over many outputs with progress, and the verdict over all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from draftsmith.cli.outputs_file import Answered
from draftsmith.cli.progress import counted
from draftsmith.cli.wiring import Running
from draftsmith.engine.distribution import distribution_gate
from draftsmith.engine.forcing import (
    ForcedVerdict,
    NoiseEstimate,
    force_outputs,
    is_suspect,
    measure_margin_noise,
)
from draftsmith.engine.types import SpecConfig

NOISE_REQUESTS, NOISE_TOKENS = 4, 48  # what the margin noise is measured on


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgements:
    """``verdict``: lossless, lossless in distribution, lossy, suspect (more ties than stock)."""

    verdict: str
    noise: NoiseEstimate | None
    verdicts: tuple[ForcedVerdict, ...]

    @property
    def lossless(self) -> bool:
        return self.verdict.startswith("lossless")

    def to_json(self) -> dict[str, Any]:
        counts = Counter(verdict.judgement for verdict in self.verdicts)
        return {
            "lossless": self.lossless,
            "verdict": self.verdict,
            "num_outputs": len(self.verdicts),
            "num_positions": sum(verdict.num_positions for verdict in self.verdicts),
            "counts": dict(counts),
            "num_ties": sum(verdict.num_ties for verdict in self.verdicts),
            "margin_noise": None if self.noise is None else self.noise.noise,
            "outputs": [asdict(verdict) for verdict in self.verdicts],
        }


def judge(running: Running, answered: Sequence[Answered], *, in_distribution: bool) -> Judgements:
    """Judge every output. ``in_distribution``: by the gate for verifiers without our noise."""
    model, tokenizer = running.target.model, running.tokenizer
    if in_distribution:
        requests = [item.request for item in answered]
        outputs = [item.output for item in answered]
        verdicts = distribution_gate(model, requests, outputs, tokenizer=tokenizer)
        lossy = any(verdict.judgement == "divergent" for verdict in verdicts)
        name = "lossy" if lossy else "lossless in distribution"
        return Judgements(verdict=name, noise=None, verdicts=verdicts)
    noise = _noise(running, answered)
    found: list[ForcedVerdict] = []
    with counted("token forcing", len(answered)) as step:
        for item in answered:
            found += force_outputs(
                model,
                [item.request],
                [item.output],
                margin_noise=noise.noise,
                tokenizer=tokenizer,
            )
            step()
    return Judgements(verdict=_verdict(found, noise), noise=noise, verdicts=tuple(found))


def _verdict(verdicts: Sequence[ForcedVerdict], noise: NoiseEstimate) -> str:
    if any(verdict.judgement == "divergent" for verdict in verdicts):
        return "lossy"
    ties = sum(verdict.num_ties for verdict in verdicts)
    positions = sum(verdict.num_positions for verdict in verdicts)
    suspect = is_suspect(ties, positions, noise.num_ties, noise.num_positions)
    return "suspect" if suspect else "lossless"


def _noise(running: Running, answered: Sequence[Answered]) -> NoiseEstimate:
    """Stock one token at a time against forced stock, on the first few prompts."""
    positions = running.target.model.info.max_positions
    requests = [
        replace(
            item.request,
            request_id=f"noise {index}",
            sampling=replace(
                item.request.sampling,
                max_tokens=min(NOISE_TOKENS, positions - len(item.request.prompt_ids)),
                min_tokens=0,
                stop_strings=(),
            ),
        )
        for index, item in enumerate(answered[:NOISE_REQUESTS])
    ]
    stock = running.engine.run(requests, SpecConfig(), capture_margins=True)
    return measure_margin_noise(running.target.model, requests, stock.completions)
