"""Rows mean the same whoever else is in the forward: trees, ragged batches, stale cache rows."""

from __future__ import annotations

import pytest
import torch
from rows import (
    assert_same_logits,
    chain_rows,
    commit_chain,
    logits_of,
    plain_logits,
    tree_rows,
)
from tinymodels import tiny_decoder

from draftsmith.engine.cache import KVCache
from draftsmith.engine.errors import EngineInputError
from draftsmith.engine.model.decoder import Decoder
from draftsmith.engine.trees.tree import DraftTree
from draftsmith.engine.types import RowBatch

PROMPT = [5, 9, 31, 12, 44, 8, 27, 50, 3, 19, 60]
ROOT, A, B, C = 7, 21, 33, 14
TREE = DraftTree((A, B, C), (-1, -1, 1))  # a and b under the root, c under b
FAMILIES = ("llama", "mistral", "gemma2", "gemma3_text", "smollm3")  # windows shorter than PROMPT


@pytest.mark.parametrize("family", FAMILIES)
def test_b21_tree_rows_equal_a_plain_forward_of_their_path(family: str) -> None:
    decoder = tiny_decoder(seed=1, num_layers=4, family=family)
    cache, slot = _after_prompt(decoder)
    rows = tree_rows(cache, slot, ROOT, TREE)
    length = len(PROMPT)
    assert rows.positions.tolist() == [[length, length + 1, length + 1, length + 2]]
    logits = logits_of(decoder, rows, cache)[0]
    for row, path in enumerate(([], [A], [B], [B, C])):
        plain = plain_logits(decoder, [*PROMPT, ROOT, *path])[-1]
        assert_same_logits(logits[row], plain, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_b21_accepting_b_and_c_keeps_their_rows(family: str) -> None:
    decoder = tiny_decoder(seed=1, num_layers=4, family=family)
    cache, slot = _after_prompt(decoder)
    decoder.forward(tree_rows(cache, slot, ROOT, TREE), cache)
    cache.keep(slot, [0, 2, 3])
    after = commit_chain(decoder, cache, slot, [40])[0]
    plain = plain_logits(decoder, [*PROMPT, ROOT, B, C, 40])[-1]
    assert_same_logits(after, plain, atol=1e-5)


def test_b21_nothing_of_an_earlier_step_leaks_into_a_later_one() -> None:
    """A wide tree, then a narrow one over the same rows: nothing stale may count."""
    decoder = tiny_decoder(seed=2)
    cache, slot = _after_prompt(decoder)
    wide = DraftTree((1, 2, 3, 4, 5, 6), (-1, -1, -1, 0, 1, 2))
    decoder.forward(tree_rows(cache, slot, ROOT, wide), cache)
    narrow = logits_of(decoder, tree_rows(cache, slot, ROOT, TREE), cache)
    fresh_cache, fresh_slot = _after_prompt(decoder)
    fresh = logits_of(decoder, tree_rows(fresh_cache, fresh_slot, ROOT, TREE), fresh_cache)
    torch.testing.assert_close(narrow, fresh, atol=0, rtol=0)


def test_a_tree_grown_level_by_level_equals_the_tree_at_once() -> None:
    decoder = tiny_decoder(seed=3, num_layers=3, family="gemma3_text")
    cache, slot = _after_prompt(decoder)
    at_once = logits_of(decoder, tree_rows(cache, slot, ROOT, TREE), cache)[0]
    ancestors = torch.from_numpy(TREE.ancestors())
    whole = tree_rows(cache, slot, ROOT, TREE)
    grown = []
    for start, stop in ((0, 1), (1, 3), (3, 4)):
        level = RowBatch(
            slots=(slot,),
            token_ids=whole.token_ids[:, start:stop],
            positions=whole.positions[:, start:stop],
            widths=(stop - start,),
            offset=start,
            visible=ancestors[None, start:stop, :stop],
        )
        grown.append(logits_of(decoder, level, cache)[0])
    assert_same_logits(torch.cat(grown), at_once, atol=1e-6)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_ragged_batches_with_padding_equal_solo_runs(family: str) -> None:
    decoder = tiny_decoder(seed=4, family=family)
    prompts = [PROMPT[:3], PROMPT, PROMPT[2:8]]
    cache = decoder.new_cache(num_slots=4, capacity=24)
    slots = [cache.allocate() for _ in prompts]
    order = [2, 0, 1]  # rows of the batch are not in slot order
    for slot, prompt in zip(slots, prompts, strict=True):
        commit_chain(decoder, cache, slot, prompt)
    steps = [[4], [8, 9, 10, 11], []]
    logits = logits_of(decoder, _padded(cache, slots, steps, order), cache)
    for row, index in enumerate(order):
        for i in range(len(steps[index])):
            plain = plain_logits(decoder, prompts[index] + steps[index][: i + 1])[-1]
            assert_same_logits(logits[row, i], plain, atol=1e-5)
    for index, slot in enumerate(slots):
        cache.keep(slot, range(len(steps[index])))
        after = commit_chain(decoder, cache, slot, [30])[0]
        plain = plain_logits(decoder, [*prompts[index], *steps[index], 30])[-1]
        assert_same_logits(after, plain, atol=1e-5)


def test_padding_needs_no_room_and_touches_no_row() -> None:
    decoder = tiny_decoder(seed=4)
    cache = decoder.new_cache(num_slots=2, capacity=8)
    full, short = cache.allocate(), cache.allocate()
    commit_chain(decoder, cache, full, PROMPT[:7])
    commit_chain(decoder, cache, short, PROMPT[:2])
    before = cache.k.clone()
    rows = _padded(cache, [full, short], [[1], [2, 3, 4, 5]], [0, 1])
    decoder.forward(rows, cache)
    assert torch.equal(cache.k[:, full, :, :7], before[:, full, :, :7])
    assert torch.equal(cache.k[:, short, :, 6:], before[:, short, :, 6:])


def test_padding_values_do_not_matter() -> None:
    decoder = tiny_decoder(seed=4)
    outcomes = []
    for filler in (0, 63):
        cache = decoder.new_cache(num_slots=2, capacity=20)
        slots = [cache.allocate(), cache.allocate()]
        for slot in slots:
            commit_chain(decoder, cache, slot, PROMPT)
        rows = _padded(cache, slots, [[1], [2, 3, 4]], [0, 1], filler)
        outcomes.append(logits_of(decoder, rows, cache))
    assert torch.equal(outcomes[0][0, :1], outcomes[1][0, :1])
    assert torch.equal(outcomes[0][1], outcomes[1][1])


def test_rows_are_bit_stable_where_the_model_says_so() -> None:
    decoder = tiny_decoder(seed=6, num_layers=3, dtype=torch.bfloat16, family="gemma2")
    if not decoder.info.row_stable:
        pytest.skip("row-stable kernels are not available here")
    together = plain_logits(decoder, PROMPT * 4)
    cache = decoder.new_cache(num_slots=1, capacity=4 * len(PROMPT))
    slot = cache.allocate()
    alone = torch.cat([commit_chain(decoder, cache, slot, [token]) for token in PROMPT * 4])
    assert torch.equal(together, alone)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"widths": (3,)}, "width 3"),
        ({"slots": (0, 0)}, "2 slots"),
        ({"positions": torch.zeros(1, 3, dtype=torch.int64)}, "positions have shape"),
        ({"visible": torch.ones(1, 2, 3, dtype=torch.bool)}, "visible has shape"),
    ],
)
def test_inconsistent_rows_are_refused(change: dict[str, object], message: str) -> None:
    decoder = tiny_decoder()
    cache = decoder.new_cache(num_slots=2, capacity=8)
    fields: dict[str, object] = {
        "slots": (0,),
        "token_ids": torch.zeros(1, 2, dtype=torch.int64),
        "positions": torch.zeros(1, 2, dtype=torch.int64),
        "widths": (2,),
    }
    with pytest.raises(EngineInputError, match=message):
        decoder.forward(RowBatch(**{**fields, **change}), cache)  # type: ignore[arg-type]


def test_one_slot_twice_in_a_batch_is_refused() -> None:
    decoder = tiny_decoder()
    cache = decoder.new_cache(num_slots=2, capacity=8)
    ids = torch.zeros(2, 1, dtype=torch.int64)
    rows = RowBatch(slots=(1, 1), token_ids=ids, positions=ids, widths=(1, 1))
    with pytest.raises(EngineInputError, match="enters a forward once"):
        decoder.forward(rows, cache)


def _after_prompt(decoder: Decoder) -> tuple[KVCache, int]:
    cache = decoder.new_cache(num_slots=1, capacity=24)
    slot = cache.allocate()
    commit_chain(decoder, cache, slot, PROMPT)
    return cache, slot


def _padded(
    cache: KVCache, slots: list[int], steps: list[list[int]], order: list[int], filler: int = 0
) -> RowBatch:
    width = max(len(step) for step in steps)
    rows = [chain_rows(cache, slots[index], steps[index]) for index in order]
    ids = [steps[index] + [filler] * (width - len(steps[index])) for index in order]
    starts = [cache.lengths[slots[index]] for index in order]
    return RowBatch(
        slots=tuple(row.slots[0] for row in rows),
        token_ids=torch.tensor(ids),
        positions=torch.tensor([[start + i for i in range(width)] for start in starts]),
        widths=tuple(len(steps[index]) for index in order),
    )
