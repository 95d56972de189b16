"""The peers of ``bench``: opened beside the target, and how their speeds compare with ours."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from statistics import median
from typing import Any, NamedTuple

import torch

from draftsmith.cli.output import make_console, say
from draftsmith.engine.job import STOCK, MeasureResult, RivalTurn, TargetRef, UnitTiming
from draftsmith.engine.model.facts import read_facts
from draftsmith.engine.native import rows_needed
from draftsmith.engine.timing import paired_ratio
from draftsmith.engine.types import Request
from draftsmith.workers.peers.catalogue import PeerSpec
from draftsmith.workers.peers.peer import Peer, PeerLoad, check_comparable, open_peers

DRAFT_ROOM = 64  # positions that a peer may draft beyond the last token
CONTEXT_STEP = 256


class Turn(NamedTuple):
    """One timed unit of ours or of a peer; ``key`` is (job, unit, repeat)."""

    key: tuple[int, int, int]
    category: str
    seconds: float
    prefill_s: float | None
    num_tokens: int
    num_requests: int


@contextmanager
def peers_of(
    specs: Sequence[PeerSpec],
    ref: TargetRef,
    requests: Sequence[Request],
    concurrency: int,
    timeout_s: float,
) -> Iterator[dict[str, Peer]]:
    """The peers by label, loaded and stopped. One that is not there or fails stays in the result
    with its reason. WorkerInputError when the requests are not ones that a peer can be asked.
    """
    if not specs:
        yield {}
        return
    check_comparable(requests)
    facts = read_facts(ref.path)
    needed = max(rows_needed(request) for request in requests)
    context = -(-(needed + DRAFT_ROOM) // CONTEXT_STEP) * CONTEXT_STEP
    load = PeerLoad(
        model=str(facts.source_path.resolve()),
        dtype=ref.dtype,
        device=ref.device,
        threads=ref.num_threads or torch.get_num_threads(),
        context=min(context, max(needed, facts.max_positions or context)),
        concurrency=concurrency,
        timeout_s=timeout_s,
    )
    console = make_console(stderr=True)

    def tell(peer: Peer) -> None:
        told = ", ".join(f"{name} {version}" for name, version in peer.versions.items())
        say(console, f"peer {peer.spec.label}: {peer.failure or told}")

    with open_peers(specs, load, tell) as peers:
        yield peers


def speeds(turns: Sequence[Turn]) -> dict[str, float | None]:
    """Tokens a second with prefill, without it, and the mean seconds of a request's prefill; the
    latter two are None where a peer does not tell.
    """
    turns = list(_by_unit(turns).values())
    tokens, seconds = sum(t.num_tokens for t in turns), sum(t.seconds for t in turns)
    requests = sum(t.num_requests for t in turns)
    told = [t.prefill_s for t in turns if t.prefill_s is not None]
    known = bool(told) and len(told) == len(turns)
    decode_s = seconds - sum(told)
    return {
        "tokens_per_s": tokens / seconds if turns else None,
        "decode_tokens_per_s": (tokens - requests) / decode_s if known and decode_s > 0 else None,
        "prefill_s": sum(told) / requests if known else None,
    }


def native_turns(results: Sequence[MeasureResult]) -> dict[str, list[Turn]]:
    """Our timed units by configuration."""
    found: dict[str, list[Turn]] = defaultdict(list)
    for job, result in enumerate(results):
        for timing in result.timings:
            found[timing.config].append(_of_timing(job, timing))
    return found


def peer_rows(
    results: Sequence[MeasureResult], peers: Mapping[str, Peer], lossy: Sequence[str]
) -> list[dict[str, Any]]:
    """One row a peer: its speeds, how many outputs equal our stock's, and for each of our
    configurations the ratio of speeds with its interval (above 1: ours is faster). A peer that
    failed, and a configuration named ``lossy``, have no ratio.
    """
    ours = {name: t for name, t in native_turns(results).items() if name not in lossy}
    theirs: dict[str, list[Turn]] = defaultdict(list)
    equal: dict[str, list[bool]] = defaultdict(list)
    for job, result in enumerate(results):
        references = {o.request_id: o.token_ids for o in result.outputs if o.config == STOCK}
        for turn in result.rival_turns:
            theirs[turn.rival].append(_of_rival(job, turn))
            if turn.repeat == 0:
                pairs = zip(turn.request_ids, turn.token_ids, strict=True)
                equal[turn.rival] += [references.get(name) == ids for name, ids in pairs]
    rows = []
    for label, peer in peers.items():
        turns = [] if peer.failure else theirs[label]
        rows.append(
            {
                "name": label,
                "peer": peer.spec.kind,
                "settings": dict(peer.spec.settings),
                "versions": peer.versions,
                "note": peer.note,
                "failure": peer.failure,
                **speeds(turns),
                "num_outputs": len(equal[label]),
                "num_equal": sum(equal[label]),
                "ours_over_it": {
                    name: _ratio(turns, own) for name, own in ours.items() if turns and own
                },
            }
        )
    return rows


def _ratio(theirs: Sequence[Turn], ours: Sequence[Turn]) -> dict[str, Any]:
    """Ratio of speeds in tokens a second, paired by unit. Outputs of two engines may differ in
    length, so a unit of theirs counts as the time that our number of tokens would have taken at its
    seconds a token.
    """
    own, other = _by_unit(ours), _by_unit(theirs)
    units = [key for key in own if key in other]
    scaled = [other[key].seconds / other[key].num_tokens * own[key].num_tokens for key in units]
    found = paired_ratio(
        scaled, [own[key].seconds for key in units], [own[key].category for key in units]
    )
    return {**asdict(found), "by_category": dict(found.by_category)}


def _by_unit(turns: Sequence[Turn]) -> dict[tuple[int, int], Turn]:
    """Medians over the repeats of a unit, as ``tuner.evidence`` takes them."""
    groups: dict[tuple[int, int], list[Turn]] = defaultdict(list)
    for turn in turns:
        groups[turn.key[:2]].append(turn)
    return {key: _typical(group) for key, group in groups.items()}


def _typical(repeats: Sequence[Turn]) -> Turn:
    told = [turn.prefill_s for turn in repeats if turn.prefill_s is not None]
    return repeats[0]._replace(
        seconds=median(turn.seconds for turn in repeats),
        prefill_s=median(told) if len(told) == len(repeats) else None,
        num_tokens=round(median(turn.num_tokens for turn in repeats)),
    )


def _of_timing(job: int, timing: UnitTiming) -> Turn:
    return Turn(
        (job, timing.unit, timing.repeat),
        timing.category,
        timing.seconds,
        timing.prefill_s,
        timing.num_tokens,
        len(timing.request_ids),
    )


def _of_rival(job: int, turn: RivalTurn) -> Turn:
    return Turn(
        (job, turn.unit, turn.repeat),
        turn.category,
        turn.seconds,
        turn.prefill_s,
        sum(len(ids) for ids in turn.token_ids),
        len(turn.request_ids),
    )
