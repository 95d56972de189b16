"""The GPU's path in Triton's interpreter: layers, whole runs of the engine, bytes and launches."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from draftsmith.engine.cache import KVCache
from draftsmith.engine.model.decoder import Decoder
from draftsmith.engine.model.gpu_cost import StepCost, StepRows
from draftsmith.engine.native import NativeEngine
from draftsmith.engine.types import Completion, Hidden, Request, RowBatch, Sampling, SpecConfig
from draftsmith.kernels.backend import use_backend
from draftsmith.kernels.cost import count_launches
from draftsmith.kernels.launching import interpreting, triton_problem
from tests.support.interpreter import computing_as_cards
from tests.support.tinymodels import tiny_decoder
from tests.support.traffic import count_traffic

FAMILIES = ["llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text"]
PROMPTS = [(5, 6, 7, 8, 5, 6, 7), (9, 4), (3, 9, 9, 3, 9, 9, 3, 9, 9, 3, 9)]


@pytest.fixture(autouse=True)
def _interpreter() -> Iterator[None]:
    if (problem := triton_problem()) is not None or not interpreting():
        pytest.skip(problem or "CPU tensors need Triton's interpreter")
    with computing_as_cards():
        yield


def _decoder(family: str, dtype: torch.dtype = torch.float32) -> Decoder:
    with use_backend("triton"):  # matrices stay dense
        return tiny_decoder(family=family, dtype=dtype, num_layers=2)


def _tree_rows() -> RowBatch:
    """Two sequences behind 12 and 3 committed rows: a tree of five rows, and a padded one."""
    visible = torch.zeros(2, 5, 5, dtype=torch.bool)
    for row, seen in enumerate(([0], [0, 1], [0, 2], [0, 1, 3], [0, 2, 4])):
        visible[0, row, seen] = True
    visible[1, :2, :2] = torch.tensor([[True, False], [True, True]])
    return RowBatch(
        slots=(1, 0),
        token_ids=torch.tensor([[5, 6, 7, 8, 9], [4, 3, 0, 0, 0]]),
        positions=torch.tensor([[12, 13, 13, 14, 14], [3, 4, 0, 0, 0]]),
        widths=(5, 2),
        visible=visible,
    )


def _filled_cache(model: Decoder) -> KVCache:
    cache = model.new_cache(num_slots=2, capacity=20)
    generator = torch.Generator().manual_seed(1)
    for tensor in (cache.k, cache.v):
        tensor.copy_(torch.randn(tensor.shape, generator=generator))
    cache.lengths[:] = [3, 12]
    return cache


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_layers_are_those_of_the_cpu(family: str, dtype: torch.dtype) -> None:
    model, rows = _decoder(family, dtype), _tree_rows()

    def run() -> tuple[Hidden, KVCache, torch.Tensor]:
        cache = _filled_cache(model)
        hidden = model.forward(rows, cache, capture=(0,))
        return hidden, cache, model.head(hidden.last[0])

    with use_backend("triton"):
        hidden, cache, logits = run()
    wanted, wanted_cache, wanted_logits = run()
    # A bf16 cache may round a key to its other neighbour.
    rtol = 1e-4 if dtype == torch.float32 else 2e-2
    for b, width in enumerate(rows.widths):
        for ours, theirs in ((hidden.last, wanted.last), (hidden.captured[0], wanted.captured[0])):
            scale = float(theirs[b, :width].abs().max())
            torch.testing.assert_close(
                ours[b, :width], theirs[b, :width], rtol=rtol, atol=rtol * scale
            )
    torch.testing.assert_close(logits, wanted_logits, rtol=rtol, atol=10 * rtol)
    torch.testing.assert_close(cache.k, wanted_cache.k, rtol=rtol, atol=10 * rtol)
    torch.testing.assert_close(cache.v, wanted_cache.v, rtol=rtol, atol=10 * rtol)


def test_rows_of_a_tree_have_the_bits_of_single_steps() -> None:
    """bf16: each path of the tree, decoded token by token in the other slot."""
    model, rows = _decoder("qwen3", torch.bfloat16), _tree_rows()
    with use_backend("triton"):
        tree = model.forward(rows, _filled_cache(model)).last[0]
        for path in ([0, 1, 3], [0, 2, 4]):
            cache = _filled_cache(model)
            for depth, row in enumerate(path):
                alone = model.forward(
                    RowBatch(
                        slots=(1,),
                        token_ids=rows.token_ids[:1, row : row + 1],
                        positions=torch.tensor([[12 + depth]]),
                        widths=(1,),
                    ),
                    cache,
                ).last
                cache.keep(1, [0])
                assert torch.equal(alone[0, 0], tree[row])


CONFIGS = {
    "stock": SpecConfig(),
    "ngram": SpecConfig(drafter="ngram", block_size=3),
    "suffix": SpecConfig(drafter="suffix", block_size=3),
    "recycle": SpecConfig(drafter="recycle", tree="static", branching=(2, 1)),
    "early exit": SpecConfig(drafter="early_exit", exit_layer=1, block_size=2),
    "skipped layers": SpecConfig(drafter="early_exit", skip_layers=(0,), block_size=2),
    "tree": SpecConfig(drafter="draft_model", draft_model="small", tree="static", branching=(2, 2)),
    "dynamic": SpecConfig(
        **dict(drafter="draft_model", draft_model="small", tree="dynamic", block_size=2),
        **dict(tree_budget=5, tree_top_k=2),
    ),
}


def _requests(temperature: float) -> list[Request]:
    return [
        Request(
            request_id=str(index),
            prompt_ids=prompt,
            sampling=Sampling(
                temperature=temperature, max_tokens=6, ignore_eos=True, seed=7 + index
            ),
        )
        for index, prompt in enumerate(PROMPTS)
    ]


def _run(
    model: Decoder, small: Decoder, config: SpecConfig, temperature: float
) -> list[Completion]:
    engine = NativeEngine(model, load_draft_model=lambda _: small)
    return list(engine.run(_requests(temperature), config, concurrency=3).completions)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", CONFIGS)
def test_engine_gives_the_tokens_of_the_cpu(name: str, temperature: float) -> None:
    """Token for token and step for step, three requests at once."""
    model, small = _decoder("qwen3"), _decoder("llama")
    with use_backend("triton"), count_launches() as launches:
        ours = _run(model, small, CONFIGS[name], temperature)
    wanted = _run(model, small, CONFIGS[name], temperature)
    assert [each.token_ids for each in ours] == [each.token_ids for each in wanted]
    assert [each.steps for each in ours] == [each.steps for each in wanted]
    for kernel in ("attention", "reduce", "linear", "rms_norm", "gate", "norm_rope_cache"):
        assert launches.by_function[f"{kernel}_kernel"] > 0


@pytest.mark.parametrize("family", FAMILIES)
def test_bytes_and_launches_of_a_step_are_those_of_the_formulas(family: str) -> None:
    model, rows = _decoder(family), _tree_rows()
    assert rows.visible is not None
    with use_backend("triton"), count_traffic() as traffic:
        hidden = model.forward(rows, _filled_cache(model))
        model.head(hidden.last[0])
    cost = StepCost(config=model.config, weights=model._weights, activation_size=4)
    wanted = cost.of(
        StepRows(
            lengths=[12, 3],
            widths=rows.widths,
            max_width=5,
            head_rows=5,
            counts=rows.visible.sum(2).tolist(),
        )
    )
    assert traffic.cost == wanted
    extra = 4 if family.startswith("gemma") else 0  # norms behind attention and feed-forward
    assert wanted.launches == 2 + 2 * 10 + extra


def test_the_path_can_be_switched_off() -> None:
    model = _decoder("llama")
    with use_backend("reference"), count_launches() as launches:
        model.forward(_tree_rows(), _filled_cache(model))
    assert launches.total == 0
