"""Step 11: what is remembered, exported and printed, put together from the phases' results."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from draftsmith.engine.types import Request
from draftsmith.store.bundle import BundleParts
from draftsmith.tuner.baseline import Baseline
from draftsmith.tuner.confirm import STAGE as CONFIRM
from draftsmith.tuner.evidence import Evidence
from draftsmith.tuner.explore import STAGE as EXPLORE
from draftsmith.tuner.incumbent import Incumbent
from draftsmith.tuner.ladder import Climber, ranking
from draftsmith.tuner.objective import Score, decode_only, ratio_interval
from draftsmith.tuner.outcome import CANDIDATE, INCUMBENT
from draftsmith.tuner.result import Interval, Lossless, TrialCount, TuneResult
from draftsmith.tuner.session import Session
from draftsmith.tuner.space import config_json, config_text
from draftsmith.tuner.verdict import Decision

ABSENT = (
    "3 calibrate: cost tables of this machine",
    "4 trace: teacher-forced drafter passes",
    "5 simulate: replay of configurations from the trace",
    "6 gap: where a step's time goes",
    "9 integrate: combining the winners of several directions",
)
TOP = 12
RIVALS = "rivals"  # what was said of other drivers that measured at the same time


def make_result(
    session: Session,
    baseline: Baseline,
    climbers: Sequence[Climber],
    decision: Decision,
    incumbent: Incumbent | None,
    bundle_path: Path,
) -> TuneResult:
    """Everything that ``tune --json`` prints."""
    shown = decision.shown
    evidence = shown.evidence if shown else Evidence()
    score = shown.score if shown else None
    stock_s = sum(pair.stock_s for pair in evidence.pairs)
    own_s = sum(pair.config_s for pair in evidence.pairs)
    tokens = sum(pair.num_tokens for pair in evidence.pairs)
    material = session.material
    return TuneResult(
        verdict=decision.verdict,
        summary=decision.summary,
        run=session.run.uuid,
        resumed=session.run.resumed,
        config=config_json(decision.config),
        config_text=config_text(decision.config),
        finalist=config_json(shown.config) if shown else None,
        stock_tokens_per_s=tokens / stock_s if stock_s else baseline.tokens_per_s,
        tokens_per_s=tokens / own_s if own_s else None,
        ratio=score.interval if score else None,
        decode_ratio=_decode_ratio(evidence),
        tokens_per_step=evidence.tokens_per_step,
        acceptance_by_position=evidence.acceptance_by_position,
        lossless=_lossless(evidence, score),
        comparisons=decision.comparisons,
        incumbent=_incumbent_json(incumbent),
        trials=_count(session),
        seconds_by_phase={name: round(s, 3) for name, s in session.watch.by_phase().items()},
        prompts={
            "tuning": len(baseline.tuning),
            "heldout": len(baseline.heldout),
            "duplicates": material.num_duplicates,
            "too_long": material.num_too_long,
        },
        top=tuple(_row(climber, incumbent) for climber in _best_first(climbers)[:TOP]),
        notes=_notes(session, baseline, incumbent),
        absent=ABSENT,
        bundle_path=str(bundle_path),
        next_command=f"draftsmith verify {shlex.quote(str(bundle_path))}",
    )


def bundle_parts(
    session: Session, baseline: Baseline, decision: Decision, result: TuneResult
) -> BundleParts:
    """The bundle of the recommended configuration. ``outputs`` are one object a held-out request
    (request_id, category, prompt_ids, token_ids, stop_reason, sampling); stock's own when the
    recommendation is off. ``evidence.target`` says how the target was loaded.
    """
    deployment = session.deployment
    produced = _heldout_outputs(session, baseline, decision)
    vocab = decision.config.draft_vocab
    return BundleParts(
        deployment=session.run.deployment.description,
        config=config_json(decision.config),
        evidence=result.to_json()
        | {
            "target": asdict(deployment.target),
            "draft_model": deployment.draft_model,
            "concurrency": deployment.regime.concurrency,
            "sampling": _plain_sampling(asdict(deployment.regime.sampling)),
            "margin_noise": baseline.margin_noise,
            "stock_ties": baseline.stock_ties,
            "stock_positions": baseline.stock_positions,
        },
        heldout={"request_ids": [request.request_id for request in baseline.heldout]},
        draft_vocab=None if vocab is None else baseline.inputs.draft_vocab_ids,
        report=_report(result),
        outputs=tuple(_output(request, produced) for request in baseline.heldout),
    )


def _heldout_outputs(
    session: Session, baseline: Baseline, decision: Decision
) -> Mapping[str, tuple[tuple[int, ...], str]]:
    """Tokens and stop reason by request: the recommended configuration's where it was confirmed."""
    repository = session.repository
    produced = {
        key: (reference.token_ids, reference.stop_reason)
        for key, reference in repository.load_references(session.run.id).items()
    }
    own = decision.shown is not None and decision.shown.config == decision.config
    if own:
        config = config_json(decision.config)
        stays = decision.verdict == "incumbent stays"
        for trial in repository.trials(session.run.id, states=["done"], stage=CONFIRM):
            if trial.config != config and not stays:
                continue
            role = CANDIDATE if trial.config == config else INCUMBENT
            for output in repository.outputs(trial.id):
                if output.config == role:
                    produced[output.request_id] = (output.token_ids, output.stop_reason)
    return produced


def _output(
    request: Request, produced: Mapping[str, tuple[tuple[int, ...], str]]
) -> dict[str, Any]:
    token_ids, stop_reason = produced[request.request_id]
    return {
        "request_id": request.request_id,
        "category": request.category,
        "prompt_ids": list(request.prompt_ids),
        "token_ids": list(token_ids),
        "stop_reason": stop_reason,
        "sampling": _plain_sampling(asdict(request.sampling)),
    }


def _plain_sampling(values: dict[str, Any]) -> dict[str, Any]:
    return {key: list(v) if isinstance(v, tuple) else v for key, v in values.items()}


def _decode_ratio(evidence: Evidence) -> Interval | None:
    if not evidence.pairs:
        return None
    return ratio_interval(evidence.pairs, seconds=decode_only)


def _lossless(evidence: Evidence, score: Score | None) -> Lossless:
    if not evidence.num_outputs:
        return Lossless(verdict="not measured")
    lossy = bool(evidence.num_divergent) or evidence.suspect
    return Lossless(
        verdict="lossy"
        if lossy
        else ("lossless in distribution" if evidence.num_distribution else "lossless"),
        num_outputs=evidence.num_outputs,
        num_exact=evidence.num_exact,
        num_ties=evidence.num_ties,
        num_divergent=evidence.num_divergent,
        detail=score.reason if score else "",
    )


def _count(session: Session) -> TrialCount:
    trials = session.repository.trials(session.run.id, stage=EXPLORE)
    first = [trial for trial in trials if trial.rung == 0]
    early = [t for t in first if t.state == "pruned" and (t.summary or {}).get("stopped_early")]
    done = [trial for trial in first if trial.state == "done"]
    return TrialCount(
        configurations=len(first),
        done=len(done) + len(early),
        stopped_early=len(early),
        unfinished=sum(trial.state == "pruned" for trial in first) - len(early),
        failed=sum(trial.state == "failed" for trial in first),
        infeasible=sum(not trial.feasible for trial in done),
        jobs=sum(trial.attempt > 0 for trial in trials),
    )


def _best_first(climbers: Sequence[Climber]) -> list[Climber]:
    """The ranking, then what lost, fastest first, then what is no candidate at all."""
    ranked = ranking(climbers)
    rest = [climber for climber in climbers if climber not in ranked]
    return ranked + sorted(rest, key=lambda c: (not c.feasible, -c.ratio))


def _row(climber: Climber, incumbent: Incumbent | None) -> dict[str, Any]:
    interval = climber.interval
    reason = climber.failed or (climber.score.reason if climber.score else "")
    return {
        "config_text": config_text(climber.config),
        "config": config_json(climber.config),
        "is_incumbent": incumbent is not None and climber.config == incumbent.config,
        "rung": climber.rung,
        "feasible": climber.feasible,
        "reason": reason,
        "ratio": interval.ratio if interval else None,
        "low": interval.low if interval else None,
        "high": interval.high if interval else None,
        "num_prompts": interval.num_prompts if interval else 0,
        "tokens_per_step": climber.evidence.tokens_per_step,
    }


def _incumbent_json(incumbent: Incumbent | None) -> dict[str, Any] | None:
    if incumbent is None:
        return None
    return {
        "name": incumbent.name,
        "config": config_json(incumbent.config),
        "config_text": config_text(incumbent.config),
        "notes": list(incumbent.notes),
    }


def _notes(session: Session, baseline: Baseline, incumbent: Incumbent | None) -> tuple[str, ...]:
    material = session.material
    notes = [f"incumbent: {note}" for note in incumbent.notes] if incumbent else []
    if material.skipped_note:
        notes.append(material.skipped_note)
    if material.num_duplicates:
        notes.append(f"{material.num_duplicates} duplicate prompts were left out")
    if material.too_long_note:
        notes.append(material.too_long_note)
    if material.num_own_sampling:
        notes.append(f"{material.num_own_sampling} rows' own sampling was not used")
    at_hand = len(material.tuning) + len(material.heldout)
    if baseline.num_prompts < at_hand:
        notes.append(
            f"the budget holds {baseline.num_prompts} of {at_hand} prompts: a longer one uses more"
        )
    if baseline.unanswered:
        lost = len(baseline.unanswered)
        notes.append(
            f"stock gave no output for {lost} {'prompt' if lost == 1 else 'prompts'}, left out; "
            f"the first: {baseline.unanswered[0]!r}"
        )
    notes += session.kernel_notes()
    notes += session.artifact(RIVALS) or []
    return tuple(notes)


def _report(result: TuneResult) -> str:
    """The evidence for people, as markdown."""
    lines = [f"# {result.verdict}: {result.config_text}", "", result.summary, ""]
    lines += _facts(result)
    if result.top:
        lines += ["", "| configuration | prompts | over stock | tokens per step | |"]
        lines += ["|---|---|---|---|---|"]
        lines += [_table_row(row) for row in result.top]
    if result.notes:
        lines += ["", *(f"- {note}" for note in result.notes)]
    lines += ["", "Steps that this version does not take: " + "; ".join(result.absent) + "."]
    return "\n".join(lines) + "\n"


def _facts(result: TuneResult) -> Iterable[str]:
    if result.ratio is not None:
        found = result.ratio
        yield (
            f"- over stock on held-out prompts: {found.ratio:.3f}x ({found.confidence * 100:g} %: "
            f"{found.low:.3f} to {found.high:.3f}, {found.num_prompts} prompts)"
        )
    if result.stock_tokens_per_s is not None:
        yield f"- stock: {result.stock_tokens_per_s:.1f} tokens/s"
    if result.tokens_per_s is not None:
        yield f"- finalist: {result.tokens_per_s:.1f} tokens/s"
    if result.tokens_per_step is not None:
        yield f"- tokens per step: {result.tokens_per_step:.2f}"
    yield f"- outputs: {result.lossless.verdict} ({result.lossless.num_outputs} token-forced)"


def _table_row(row: Mapping[str, Any]) -> str:
    def number(value: float | None) -> str:
        return "" if value is None else f"{value:.2f}"

    span = f"{number(row['ratio'])} ({number(row['low'])} to {number(row['high'])})"
    cells = [
        row["config_text"],
        str(row["num_prompts"]),
        span if row["ratio"] is not None else "",
        number(row["tokens_per_step"]),
        row["reason"],
    ]
    return "| " + " | ".join(cells) + " |"
