"""The draft vocabulary: which token ids a trimmed draft head keeps, and how its rows map back.

Offsets follow the EAGLE-3 convention: target id of draft row ``i`` is ``i + d2t[i]``, so zeros are
the identity (cases.md B24). The target is never trimmed, hence trimming cannot change an output.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from draftsmith.engine.drafters.drafter import DrafterContext
from draftsmith.engine.drafters.shapes import require_int
from draftsmith.engine.errors import EngineInputError
from draftsmith.engine.model.model import Model, ModelInfo
from draftsmith.engine.types import HeadRows, Request


def rank_by_frequency(sequences: Iterable[Sequence[int]]) -> tuple[int, ...]:
    """Token ids by falling count over ``sequences``; equal counts by rising id."""
    counts: Counter[int] = Counter()
    for sequence in sequences:
        counts.update(sequence)
    return tuple(sorted(counts, key=lambda token: (-counts[token], token)))


def forced_token_ids(info: ModelInfo, requests: Sequence[Request] = ()) -> tuple[int, ...]:
    """Ids that every trim keeps: the model's EOS and the requests' stop tokens, ascending."""
    forced = set(info.eos_token_ids)
    for request in requests:
        forced.update(request.sampling.stop_token_ids)
    return tuple(sorted(forced))


def trim_vocabulary(
    ranked_ids: Sequence[int], size: int, *, vocab_size: int, forced_ids: Sequence[int] = ()
) -> tuple[int, ...]:
    """Exactly ``size`` ids, ascending: the forced ones, then the most frequent, then (where
    the ranking is shorter) the lowest ids, which byte-pair vocabularies give to their commonest
    pieces.
    """
    require_int("draft vocabulary size", size, 1, vocab_size)
    wrong = [token for token in (*forced_ids, *ranked_ids) if not 0 <= token < vocab_size]
    if wrong:
        raise EngineInputError(
            f"draft vocabulary names token id {wrong[0]}, the target's ids are 0..{vocab_size - 1};"
            " count the workload with the target's own tokenizer"
        )
    kept = dict.fromkeys(forced_ids)
    if len(kept) > size:
        raise EngineInputError(
            f"draft vocabulary size {size} is under its {len(kept)} forced ids (EOS and stop"
            f" tokens); give {len(kept)} or more"
        )
    for source in (ranked_ids, range(vocab_size)):
        for token in source:
            if len(kept) == size:
                return tuple(sorted(kept))
            kept[token] = None
    return tuple(sorted(kept))


def draft_to_target(token_ids: Sequence[int]) -> tuple[int, ...]:
    """Offsets ``d2t`` of sorted, distinct ``token_ids``."""
    if any(later <= earlier for earlier, later in zip(token_ids, token_ids[1:], strict=False)):
        raise EngineInputError("draft vocabulary ids must ascend without repeats; sort them")
    return tuple(token - row for row, token in enumerate(token_ids))


def target_mask(token_ids: Sequence[int], vocab_size: int) -> tuple[bool, ...]:
    """``t2d``: for each target id whether the draft head scores it."""
    kept = set(token_ids)
    return tuple(token in kept for token in range(vocab_size))


def token_ids_from_offsets(
    offsets: Sequence[int] | None, num_rows: int, vocab_size: int
) -> tuple[int, ...]:
    """Target ids of a draft head with ``num_rows`` rows. No offsets means the whole vocabulary, so
    a smaller head without them is refused: its rows could stand for anything.
    """
    if offsets is None:
        if num_rows != vocab_size:
            raise EngineInputError(
                f"draft head has {num_rows} rows, the target's vocabulary {vocab_size}, and no d2t"
                " map says which; supply the map of the trimmed head"
            )
        return tuple(range(vocab_size))
    if len(offsets) != num_rows:
        raise EngineInputError(
            f"d2t map has {len(offsets)} offsets for a draft head of {num_rows} rows;"
            " they must be equal"
        )
    ids = tuple(row + offset for row, offset in enumerate(offsets))
    if any(not 0 <= token < vocab_size for token in ids) or len(set(ids)) != len(ids):
        raise EngineInputError(
            f"d2t map leads outside 0..{vocab_size - 1} or twice to one id; it holds offsets"
            " (target id = row + offset), not ids"
        )
    return ids


def draft_head(model: Model, size: int | None, context: DrafterContext) -> HeadRows | None:
    """The trimmed head of ``model`` (target or draft model) for ``SpecConfig.draft_vocab``; None =
    whole.
    """
    if size is None:
        return None
    vocab_size = model.info.vocab_size
    require_int("draft_vocab", size, 1, vocab_size)
    if size == vocab_size:
        return None
    if not context.draft_vocab_ids:
        raise EngineInputError(
            f"draft_vocab {size} needs token ids ranked by frequency, none were given;"
            " count them on a workload or leave draft_vocab unset"
        )
    ids = trim_vocabulary(
        context.draft_vocab_ids, size, vocab_size=vocab_size, forced_ids=context.forced_ids
    )
    return model.trim_head(ids)
