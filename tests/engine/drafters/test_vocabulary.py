"""The draft vocabulary: cases.md B24 with its exact numbers, and every nonsense size."""

from __future__ import annotations

import pytest

from draftsmith.engine.drafters.drafter import DrafterContext
from draftsmith.engine.drafters.vocabulary import (
    draft_head,
    draft_to_target,
    forced_token_ids,
    rank_by_frequency,
    target_mask,
    token_ids_from_offsets,
    trim_vocabulary,
)
from draftsmith.engine.errors import EngineInputError
from draftsmith.engine.types import Request, Sampling
from tests.support.tinymodels import tiny_decoder


def test_b24_offsets_of_four_kept_ids() -> None:
    kept = trim_vocabulary((8, 20, 3, 7, 5), 4, vocab_size=32)
    assert kept == (3, 7, 8, 20)
    assert draft_to_target(kept) == (3, 6, 6, 17)
    mask = target_mask(kept, 32)
    assert [token for token, is_kept in enumerate(mask) if is_kept] == [3, 7, 8, 20]
    assert len(mask) == 32
    assert token_ids_from_offsets((3, 6, 6, 17), 4, 32) == kept


def test_b24_zero_offsets_are_the_identity() -> None:
    assert token_ids_from_offsets((0, 0, 0), 3, 32) == (0, 1, 2)
    assert draft_to_target((0, 1, 2)) == (0, 0, 0)


@pytest.mark.parametrize("size", [0, -1, 4.0, 33, True])
def test_b24_nonsense_sizes_are_refused(size: object) -> None:
    with pytest.raises(EngineInputError, match=r"from 1 to 32") as caught:
        trim_vocabulary(range(32), size, vocab_size=32)  # type: ignore[arg-type]
    assert repr(size) in str(caught.value)


def test_b24_a_smaller_head_without_a_map_is_refused() -> None:
    assert token_ids_from_offsets(None, 32, 32) == tuple(range(32))
    with pytest.raises(EngineInputError, match="4 rows.*vocabulary 32.*no d2t"):
        token_ids_from_offsets(None, 4, 32)


def test_b24_ids_read_as_offsets_are_refused() -> None:
    with pytest.raises(EngineInputError, match="holds offsets"):
        token_ids_from_offsets((3, 7, 8, 30), 4, 32)
    with pytest.raises(EngineInputError, match="twice to one id"):
        token_ids_from_offsets((1, 0, 0), 3, 32)
    with pytest.raises(EngineInputError, match="2 offsets for a draft head of 3"):
        token_ids_from_offsets((1, 0), 3, 32)


def test_forced_ids_stay_whatever_their_rank() -> None:
    kept = trim_vocabulary((9, 8, 7, 6), 3, vocab_size=32, forced_ids=(1, 31))
    assert kept == (1, 9, 31)
    with pytest.raises(EngineInputError, match=r"size 1 is under its 2 forced ids.*give 2"):
        trim_vocabulary((9,), 1, vocab_size=32, forced_ids=(1, 31))


def test_short_rankings_are_filled_with_the_lowest_ids() -> None:
    assert trim_vocabulary((9, 0), 4, vocab_size=32) == (0, 1, 2, 9)
    assert trim_vocabulary((), 32, vocab_size=32) == tuple(range(32))


def test_ids_outside_the_vocabulary_and_unsorted_ids_are_refused() -> None:
    with pytest.raises(EngineInputError, match=r"token id 32.*0\.\.31"):
        trim_vocabulary((3, 32), 2, vocab_size=32)
    with pytest.raises(EngineInputError, match="ascend"):
        draft_to_target((3, 3))


def test_rank_by_frequency_counts_and_breaks_ties_by_id() -> None:
    assert rank_by_frequency([(5, 4, 5), (4, 9, 5), (2,)]) == (5, 4, 2, 9)


def test_forced_ids_are_eos_and_the_requests_stop_tokens() -> None:
    info = tiny_decoder(vocab_size=32).info
    sampling = Sampling(stop_token_ids=(7, 3))
    request = Request(request_id="r", prompt_ids=(4,), sampling=sampling)
    assert forced_token_ids(info, [request]) == tuple(sorted({*info.eos_token_ids, 3, 7}))


def test_draft_head_takes_a_prefix_of_the_ranking_or_the_whole() -> None:
    model = tiny_decoder(vocab_size=32)
    cache = model.new_cache(num_slots=1, capacity=8)
    context = DrafterContext(
        target=model, cache=cache, draft_vocab_ids=(9, 8, 7, 6, 5), forced_ids=(1,)
    )
    head = draft_head(model, 4, context)
    assert head is not None
    assert head.token_ids.tolist() == [1, 7, 8, 9]
    assert draft_head(model, None, context) is None
    assert draft_head(model, 32, context) is None
    bare = DrafterContext(target=model, cache=cache)
    with pytest.raises(EngineInputError, match="draft_vocab 4 needs token ids ranked"):
        draft_head(model, 4, bare)
