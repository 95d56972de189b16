"""What a run works on: the prompts in their two parts, the tokenizer, the facts of the models.

Nothing here loads weights; the workers do. transformers is imported by the functions that need it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any

from draftsmith.engine.errors import EngineInputError
from draftsmith.engine.limits import check_request
from draftsmith.engine.prompts import (
    draft_vocab_ranking,
    request_id,
    requests_for_turn,
)
from draftsmith.engine.sampling import check_sampling
from draftsmith.engine.types import Request, SpecConfig
from draftsmith.engine.units import two_units
from draftsmith.engine.workload import Workload, limit, read_workload, split
from draftsmith.engine.workload_formats import WorkloadRow
from draftsmith.tuner.deployment import Deployment
from draftsmith.tuner.errors import TunerInputError
from draftsmith.tuner.knobs import SpaceFacts
from draftsmith.tuner.space import check_fixed

if TYPE_CHECKING:
    from draftsmith.engine.model.facts import ModelFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One row of the workload: a single prompt, or the turns of a conversation."""

    row_id: str
    category: str
    num_turns: int
    row: WorkloadRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Material:
    """``tuning`` and ``heldout`` are spread: any prefix holds every category about equally."""

    deployment: Deployment
    facts: SpaceFacts
    tokenizer: Any
    tuning: tuple[Prompt, ...]
    heldout: tuple[Prompt, ...]
    num_duplicates: int
    num_too_long: int
    num_own_sampling: int
    num_positions: int | None = None  # that a request may need; None where nothing says
    num_skipped: int = 0
    first_skipped: str = ""  # why the first of them could not be read

    @property
    def skipped_note(self) -> str | None:
        """What was skipped, for people; None when every row could be read."""
        if not self.num_skipped:
            return None
        rows = "1 row" if self.num_skipped == 1 else f"{self.num_skipped} rows"
        return f"{rows} could not be read and were left out; the first: {self.first_skipped}"

    @property
    def too_long_note(self) -> str | None:
        """What was too long, for people; None when nothing was."""
        if not self.num_too_long:
            return None
        prompts = "1 prompt" if self.num_too_long == 1 else f"{self.num_too_long} prompts"
        limit = self.deployment.workload.max_prompt_tokens
        return f"left out: {prompts} over {limit} tokens"

    def request(
        self, prompt: Prompt, turn: int, outputs: Mapping[str, tuple[int, ...]]
    ) -> Request | None:
        """The request of one turn (from 0); a later one follows ``outputs``, stock's answers by
        request id. None when an earlier turn has no answer or the prompt grew too long.
        """
        earlier = [request_id(prompt.row_id, t) for t in range(1, turn + 1)]
        previous = {key: self._text(outputs[key]) for key in earlier if key in outputs}
        made = requests_for_turn(
            [prompt.row],
            turn + 1,
            previous,
            self.tokenizer,
            self.deployment.regime.sampling,
            max_prompt_tokens=self.deployment.workload.max_prompt_tokens,
        )
        return made.requests[0] if made.requests else None

    def ranking(
        self, requests: Sequence[Request], outputs: Mapping[str, tuple[int, ...]]
    ) -> tuple[int, ...]:
        """Token ids by frequency over the tuning prompts and stock's answers to them; answers count
        first of all, since those are what a draft head predicts.
        """
        answers = [outputs[r.request_id] for r in requests if r.request_id in outputs]
        prompts = [r.prompt_ids for r in requests]
        ranked = dict.fromkeys(draft_vocab_ranking(answers, self.facts.vocab_size))
        ranked.update(dict.fromkeys(draft_vocab_ranking(prompts, self.facts.vocab_size)))
        return tuple(ranked)

    def _text(self, token_ids: tuple[int, ...]) -> str:
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=True))


def load_material(deployment: Deployment) -> Material:
    """Read workload, tokenizer and configurations. Raises EngineInputError for what cannot be read
    or what the target cannot be asked, and TunerInputError when the prompts are too few or the
    draft model has another vocabulary.
    """
    from draftsmith.engine.model.facts import read_facts

    workload = read_workload(deployment.workload.path, skip_bad=deployment.workload.skip_bad_rows)
    target = read_facts(deployment.target.path)
    facts = _space_facts(deployment, target)
    tokenizer = _tokenizer(target, workload)
    if deployment.workload.limit is not None:
        workload = replace(workload, rows=limit(workload.rows, deployment.workload.limit))
    first = requests_for_turn(
        workload.rows,
        1,
        {},
        tokenizer,
        deployment.regime.sampling,
        max_prompt_tokens=deployment.workload.max_prompt_tokens,
    )
    usable = {request.request_id for request in first.requests}
    workload = replace(workload, rows=tuple(r for r in workload.rows if r.row_id in usable))
    if len(workload.rows) < 2:
        raise TunerInputError(
            f"workload {deployment.workload.path!r} has {len(workload.rows)} prompts of at most "
            f"{deployment.workload.max_prompt_tokens} tokens, {len(first.too_long)} are longer and "
            f"{workload.num_duplicates} repeat another: at least 2 different ones are needed; add "
            "prompts, or raise workload.max_prompt_tokens"
        )
    check_sampling(deployment.regime.sampling, target.vocab_size)
    _check_requests(first.requests, workload, deployment, target)
    needed = _positions(deployment, first.requests, workload, target)
    if deployment.draft_model is not None:
        check_draft_model(deployment.draft_model, target, tokenizer, needed)
    parts = split(workload, heldout_fraction=deployment.workload.heldout_fraction)
    _check_units(len(parts.tuning), len(parts.heldout), deployment)
    return Material(
        deployment=deployment,
        facts=facts,
        tokenizer=tokenizer,
        tuning=_spread(parts.tuning),
        heldout=_spread(parts.heldout),
        num_duplicates=workload.num_duplicates,
        num_too_long=len(first.too_long),
        num_own_sampling=workload.num_own_sampling,
        num_positions=needed,
        num_skipped=workload.num_skipped,
        first_skipped=workload.first_skipped,
    )


def check_incumbent(config: SpecConfig, material: Material) -> None:
    """Refuse an incumbent whose draft model cannot serve the target, before anything is measured.
    Raises what reading it raises, and TunerInputError.
    """
    from draftsmith.engine.model.facts import read_facts

    if config.draft_model is not None:
        target = read_facts(material.deployment.target.path)
        check_draft_model(config.draft_model, target, material.tokenizer, material.num_positions)


def _check_requests(
    requests: Sequence[Request], workload: Workload, deployment: Deployment, target: ModelFacts
) -> None:
    """Refuse by line what the target cannot be asked."""
    lines = {row.row_id: row.line for row in workload.rows}
    for request in requests:
        try:
            check_request(request, target.vocab_size, target.max_positions, "the target")
        except EngineInputError as error:
            raise TunerInputError(
                f"workload {deployment.workload.path!r}, line {lines[request.request_id]}: {error}"
            ) from error


def _check_units(num_tuning: int, num_heldout: int, deployment: Deployment) -> None:
    """Refuse a split whose smaller part is one timed unit at the concurrency: a speed-up from one
    measurement has no interval, so the verdict could only be inconclusive.
    """
    concurrency = deployment.regime.concurrency
    if concurrency == 1:
        return
    needed = two_units(concurrency)
    if min(num_tuning, num_heldout) < needed:
        raise TunerInputError(
            f"workload {deployment.workload.path!r} gives {num_tuning} tuning and {num_heldout} "
            f"held-out prompts: at concurrency {concurrency} each part needs at least {needed}, "
            "requests for two timed groups; add prompts, lower --concurrency, or change "
            f"workload.heldout_fraction ({deployment.workload.heldout_fraction:g})"
        )


def check_draft_model(path: str, target: ModelFacts, tokenizer: Any, needed: int | None) -> None:
    """Refuse a draft model whose token ids mean something else, or that has fewer positions than
    the requests need (``needed``; None where nothing says).
    """
    from draftsmith.engine.model.facts import read_facts
    from draftsmith.engine.model.loading import load_tokenizer

    draft = read_facts(path)
    if draft.vocab_size != target.vocab_size:
        raise TunerInputError(
            f"draft model {path!r} has {draft.vocab_size} token ids, the target has "
            f"{target.vocab_size}: a draft model needs the target's vocabulary; choose one of the "
            "same family"
        )
    if needed is not None and draft.max_positions is not None and draft.max_positions < needed:
        raise TunerInputError(
            f"draft model {path!r} has {draft.max_positions} positions, the target has "
            f"{target.max_positions}: the requests may need {needed} (prompt and max_tokens); "
            "choose a draft model with as many, or lower regime.max_tokens or "
            "workload.max_prompt_tokens"
        )
    if tokenizer is None:
        return
    if load_tokenizer(draft.source_path).get_vocab() != tokenizer.get_vocab():
        raise TunerInputError(
            f"draft model {path!r} has as many token ids as the target but other tokens: a draft "
            "model needs the target's vocabulary; choose one of the same family"
        )


def _positions(
    deployment: Deployment,
    requests: Sequence[Request],
    workload: Workload,
    target: ModelFacts,
) -> int | None:
    """Positions that a request may need, prompt and output; None when nothing says. Later turns of
    a conversation may grow up to the longest prompt that is allowed, within what the target has.
    """
    if all(row.num_turns == 1 for row in workload.rows):
        return max(len(request.prompt_ids) + request.sampling.max_tokens for request in requests)
    longest = deployment.workload.max_prompt_tokens
    grown = None if longest is None else longest + deployment.regime.sampling.max_tokens
    return min(
        (limit for limit in (grown, target.max_positions) if limit is not None), default=None
    )


def _space_facts(deployment: Deployment, target: ModelFacts) -> SpaceFacts:
    facts = SpaceFacts(
        num_layers=target.num_layers,
        vocab_size=target.vocab_size,
        families=deployment.drafters,
        layer_subsets=target.layer_subsets,
        draft_model=deployment.draft_model,
        concurrency=deployment.regime.concurrency,
        temperature=deployment.regime.sampling.temperature,
    )
    return replace(facts, fixed=check_fixed(deployment.fixed, facts))


def _tokenizer(target: ModelFacts, workload: Workload) -> Any:
    """None only when every row is token ids already."""
    from draftsmith.engine.model.loading import load_tokenizer

    try:
        return load_tokenizer(target.source_path)
    except EngineInputError:
        if all(row.prompt_ids for row in workload.rows):
            return None
        raise


def _spread(rows: Sequence[WorkloadRow]) -> tuple[Prompt, ...]:
    """Categories in turn, within each by the hash of the content."""
    groups: dict[str, list[WorkloadRow]] = {}
    for row in sorted(rows, key=lambda row: row.digest):
        groups.setdefault(row.category, []).append(row)
    layers = zip_longest(*(groups[name] for name in sorted(groups)))
    return tuple(
        Prompt(row_id=row.row_id, category=row.category, num_turns=row.num_turns, row=row)
        for row in chain.from_iterable(layers)
        if row is not None
    )
