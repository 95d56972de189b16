"""The native engine: requests and one configuration in, completions out."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from draftsmith.engine.budget import DraftBudget
from draftsmith.engine.cache import KVCache
from draftsmith.engine.decode import DecodeLoop
from draftsmith.engine.drafters.drafter import Drafter, DrafterContext
from draftsmith.engine.drafters.registry import MATCHERS, draft_rows, make_drafter
from draftsmith.engine.drafters.vocabulary import forced_token_ids
from draftsmith.engine.errors import EngineInputError
from draftsmith.engine.job import DraftInputs
from draftsmith.engine.limits import check_request
from draftsmith.engine.model.model import Model
from draftsmith.engine.stopping import TextDecoder
from draftsmith.engine.timing import Clock, MonotonicClock
from draftsmith.engine.types import Completion, Request, SpecConfig

RESIDENT_SESSIONS = 4  # configurations whose cache and drafter stay allocated between runs
CAPACITY_STEP = (
    256  # cache rows are rounded up to this, so that runs of like length share a session
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """``completions`` in request order; ``wall_s`` from the first admission to the last token."""

    completions: tuple[Completion, ...]
    wall_s: float
    num_forwards: int


@dataclass(slots=True)
class _Session:
    cache: KVCache
    drafter: Drafter | None
    budget: DraftBudget | None = None


class NativeEngine:
    """Runs any ``SpecConfig`` on one resident target.

    Cache and drafter of the last few configurations are kept; a drafter's state is reset per
    request, so nothing learned from one prompt reaches the next (cases.md B1). A kept session is
    used again only where a new one would be the same: all that ``_session`` builds from is in its
    key. Without a ``clock`` times are taken after the model's device has finished.
    """

    def __init__(
        self,
        model: Model,
        *,
        tokenizer: TextDecoder | None = None,
        clock: Clock | None = None,
        load_draft_model: Callable[[str], Model] | None = None,
    ) -> None:
        self.model = model
        self._tokenizer = tokenizer
        self._clock = clock
        self._load_draft_model = load_draft_model
        self._draft_models: dict[str, Model] = {}
        self._sessions: OrderedDict[str, _Session] = OrderedDict()

    def run(
        self,
        requests: Sequence[Request],
        config: SpecConfig,
        *,
        concurrency: int = 1,
        inputs: DraftInputs | None = None,
        references: Mapping[str, tuple[int, ...]] | None = None,
        capture_margins: bool = False,
        capacity: int = 0,
    ) -> Outcome:
        """Decode ``requests``, at most ``concurrency`` together. ``references`` feeds the scripted
        drafter. ``capacity``: cache rows a slot at least, so that calls with shorter and longer
        requests share one cache and drafter.
        """
        self._check(requests, concurrency)
        draft_model = self._draft_model(config)
        if draft_model is not None:
            _check_positions(requests, self.model, draft_model)
        if capture_margins and config.drafter != "none":
            raise EngineInputError("margins are captured for stock only (drafter none)")
        inputs = inputs or DraftInputs()
        session = self._session(requests, config, concurrency, inputs, references, capacity)
        clock = self._clock or MonotonicClock(session.cache.device)
        loop = DecodeLoop(
            self.model,
            session.cache,
            session.drafter,
            clock=clock,
            decoder=self._tokenizer,
            verifier=config.verifier,
            max_nodes=max_nodes(config),
            chain=config.tree == "chain",
            capture_margins=capture_margins,
            budget=session.budget,
        )
        begin = clock.now()
        completions = loop.run(requests)
        return Outcome(tuple(completions), clock.now() - begin, loop.num_forwards)

    def forget(self) -> None:
        """Drop caches and drafters (after an out-of-memory error, say)."""
        self._sessions.clear()
        self._draft_models.clear()

    def _check(self, requests: Sequence[Request], concurrency: int) -> None:
        if concurrency < 1:
            raise EngineInputError(f"concurrency is {concurrency}; give 1 or more")
        info = self.model.info
        for request in requests:
            check_request(request, info.vocab_size, info.max_positions, info.name)

    def _session(
        self,
        requests: Sequence[Request],
        config: SpecConfig,
        concurrency: int,
        inputs: DraftInputs,
        references: Mapping[str, tuple[int, ...]] | None,
        least_rows: int,
    ) -> _Session:
        rows = max(least_rows, *(rows_needed(request) for request in requests), 1)
        rows += 1 + max(max_nodes(config), draft_rows(config, inputs.rank_acceptance))
        capacity = -(-rows // CAPACITY_STEP) * CAPACITY_STEP
        slots = min(concurrency, max(1, len(requests)))
        trimmed = config.draft_vocab is not None  # only then do stop tokens enter a drafter's build
        forced = forced_token_ids(self.model.info, requests) if trimmed else ()
        digest = hashlib.sha256(repr((config, inputs, forced)).encode()).hexdigest()
        key = f"{digest}:{slots}:{capacity}"
        if references is None and key in self._sessions:
            self._sessions.move_to_end(key)
            return self._sessions[key]
        cache = self.model.new_cache(num_slots=slots, capacity=capacity)
        context = DrafterContext(
            target=self.model,
            cache=cache,
            draft_model=self._draft_model(config),
            draft_vocab_ids=inputs.draft_vocab_ids,
            forced_ids=forced,
            references=_by_prompt(requests, references),
            suffix_store=inputs.suffix_store,
            rank_acceptance=inputs.rank_acceptance,
        )
        budget = (
            DraftBudget(chain=config.tree == "chain") if config.draft_budget == "gain" else None
        )
        session = _Session(cache, make_drafter(config, context), budget)
        if references is None:
            self._sessions[key] = session
            if len(self._sessions) > RESIDENT_SESSIONS:
                self._sessions.popitem(last=False)
        return session

    def _draft_model(self, config: SpecConfig) -> Model | None:
        if config.drafter != "draft_model":
            return None
        if config.draft_model is None:
            raise EngineInputError(
                "drafter draft_model needs the folder of its checkpoint (draft_model)"
            )
        if self._load_draft_model is None:
            raise EngineInputError("this engine was built without a loader for draft models")
        if config.draft_model not in self._draft_models:
            self._draft_models[config.draft_model] = self._load_draft_model(config.draft_model)
        return self._draft_models[config.draft_model]


def rows_needed(request: Request) -> int:
    """Cache rows that one request commits at most."""
    return len(request.prompt_ids) + request.sampling.max_tokens


def _check_positions(requests: Sequence[Request], target: Model, draft: Model) -> None:
    """Refuse requests that outgrow the draft model; the target's own limit is checked before."""
    for request in requests:
        total = rows_needed(request)
        if total > draft.info.max_positions:
            raise EngineInputError(
                f"draft model {draft.info.name} has {draft.info.max_positions} positions, target"
                f" {target.info.name} {target.info.max_positions}: request {request.request_id}"
                f" needs {total} of both (prompt {len(request.prompt_ids)} + max_tokens"
                f" {request.sampling.max_tokens}); use a draft model with {total} or more, shorten"
                " the prompt or lower max_tokens"
            )


def max_nodes(config: SpecConfig) -> int:
    """Most nodes that the configuration can draft in one step of one request."""
    if config.drafter == "none":
        return 0
    fallback = config.fallback_size if config.drafter in MATCHERS else 0
    if config.tree == "chain":
        return max(config.block_size, fallback)
    if config.tree == "static" and config.branching:
        total, level = 0, 1
        for count in config.branching:
            level *= count
            total += level
        return total
    return max(config.tree_budget, fallback)


def _by_prompt(
    requests: Sequence[Request], references: Mapping[str, tuple[int, ...]] | None
) -> dict[tuple[int, ...], tuple[int, ...]] | None:
    if references is None:
        return None
    return {
        request.prompt_ids: references[request.request_id]
        for request in requests
        if request.request_id in references
    }
