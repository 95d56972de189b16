"""From the confirmations to the verdict, and what is recommended. Pure; nothing is measured here.

- ``winner``: the lower end of the finalist's interval over stock is above 1, its ratio above 1.01
  (within one per cent off, the simpler one, stays), and over the incumbent the lower end is above 1
- ``off``: nothing beat stock by more than one per cent on the tuning prompts, or on the held-out
  ones the finalist is shown to gain less than that, or to be slower
- ``inconclusive``: neither; the simpler configuration (off) stays
- ``incumbent stays``: what runs today is lossless and nothing is shown to beat it
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from draftsmith.engine.types import SpecConfig
from draftsmith.tuner.baseline import OFF
from draftsmith.tuner.confirm import Confirmation, judge
from draftsmith.tuner.ladder import NEAR, Climber
from draftsmith.tuner.result import Comparison, Verdict
from draftsmith.tuner.space import config_text


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """``config`` is recommended; ``shown`` is the confirmation whose figures describe it, None when
    the recommendation was not measured on held-out prompts (off needs no measuring: it is stock).
    """

    verdict: Verdict
    config: SpecConfig
    summary: str
    shown: Confirmation | None = None
    comparisons: tuple[Comparison, ...] = ()


def decide(
    confirmations: Sequence[Confirmation],
    climbers: Sequence[Climber],
    incumbent: SpecConfig | None,
) -> Decision:
    """The verdict. ``confirmations`` holds at most one confirmed winner: the last one measured."""
    comparisons = tuple(item for made in confirmations for item in _compare(made))
    best = next((made for made in confirmations if made.wins), None)
    if incumbent is not None and _incumbent_holds(confirmations, climbers, incumbent, best):
        return Decision(
            verdict="incumbent stays",
            config=incumbent,
            summary=f"nothing is shown to beat the incumbent ({config_text(incumbent)})",
            shown=_evidence_of(confirmations, incumbent),
            comparisons=comparisons,
        )
    if best is not None:
        ratio = best.score.interval if best.score else None
        gain = f"{ratio.ratio:.2f}x stock, at least {ratio.low:.2f}x" if ratio else "faster"
        return Decision(
            verdict="winner",
            config=best.config,
            summary=f"{config_text(best.config)} decodes {gain}, every output unchanged",
            shown=best,
            comparisons=comparisons,
        )
    shown = confirmations[0] if confirmations else None
    verdict, summary = _without_winner(shown, climbers)
    return Decision(
        verdict=verdict, config=OFF, summary=summary, shown=shown, comparisons=comparisons
    )


def _without_winner(shown: Confirmation | None, climbers: Sequence[Climber]) -> tuple[Verdict, str]:
    if shown is None:
        measured = [climber for climber in climbers if climber.score is not None]
        if not measured:
            reasons = sorted({c.failed for c in climbers if c.failed})
            why = f": {reasons[0]}" if reasons else " within the budget"
            return "inconclusive", f"no configuration could be measured{why}; leave speculation off"
        if not any(climber.feasible for climber in measured):
            reason = next(c.score.reason for c in measured if c.score is not None)
            return "off", f"no valid configuration ({reason}); leave speculation off"
        return "off", (
            f"nothing was more than {NEAR:.0%} faster than stock on the tuning prompts; "
            "leave speculation off"
        )
    name = config_text(shown.config)
    if shown.failure:
        return "inconclusive", f"{name} failed on the held-out prompts: {shown.failure}"
    if shown.score is not None and not shown.score.feasible:
        return "off", f"{name} is not valid on the held-out prompts: {shown.score.reason}"
    interval = shown.score.interval if shown.score else None
    span = f"{interval.low:.2f}x to {interval.high:.2f}x" if interval else "unknown"
    if shown.verdict == "slower":
        return "off", f"{name} is slower than stock on the held-out prompts ({span})"
    if shown.verdict == "faster":
        return "off", f"{name} is within {NEAR:.0%} of stock ({span}): the simpler one, off, stays"
    return (
        "inconclusive",
        f"{name} is not shown to be faster than stock on the held-out prompts ({span}): "
        "leave speculation off, or tune longer with more prompts",
    )


def _incumbent_holds(
    confirmations: Sequence[Confirmation],
    climbers: Sequence[Climber],
    incumbent: SpecConfig,
    best: Confirmation | None,
) -> bool:
    """The incumbent is valid, not shown slower than stock, and not shown slower than the winner."""
    own = _own_confirmation(confirmations, incumbent)
    if own is not None:
        held = own.score
    else:
        measured = next((m.incumbent_score for m in confirmations if m.incumbent_score), None)
        climber = next((c for c in climbers if c.config == incumbent), None)
        held = measured or (climber.score if climber and not climber.failed else None)
    if held is None or not held.feasible or judge(held.interval) == "slower":
        return False
    if best is None or best is own:
        return True
    return judge(best.against_incumbent) != "faster"


def _own_confirmation(
    confirmations: Sequence[Confirmation], config: SpecConfig
) -> Confirmation | None:
    return next((made for made in confirmations if made.config == config), None)


def _evidence_of(
    confirmations: Sequence[Confirmation], incumbent: SpecConfig
) -> Confirmation | None:
    """What was measured of the incumbent on the held-out prompts: as a finalist, or beside one."""
    own = _own_confirmation(confirmations, incumbent)
    if own is not None:
        return own
    beside = next((made for made in confirmations if made.incumbent_score is not None), None)
    if beside is None:
        return None
    return Confirmation(
        config=incumbent,
        evidence=beside.incumbent,
        score=beside.incumbent_score,
        passes=beside.passes,
    )


def _compare(made: Confirmation) -> list[Comparison]:
    name = config_text(made.config)
    found: list[Comparison] = []
    if made.score and made.score.interval:
        found.append(
            Comparison(
                config_text=name,
                against="stock",
                interval=made.score.interval,
                verdict=made.verdict,
            )
        )
    if made.against_incumbent:
        found.append(
            Comparison(
                config_text=name,
                against="incumbent",
                interval=made.against_incumbent,
                verdict=judge(made.against_incumbent),
            )
        )
    if made.incumbent_score and made.incumbent_score.interval:
        found.append(
            Comparison(
                config_text="incumbent",
                against="stock",
                interval=made.incumbent_score.interval,
                verdict=judge(made.incumbent_score.interval),
            )
        )
    return found
