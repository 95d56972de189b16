"""Weights in 12 bits: the same bits out of the whole model, less memory, and refusals by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import GPT2Config

from draftsmith.engine.batch import causal_rows
from draftsmith.engine.errors import EngineInputError, UnsupportedError
from draftsmith.engine.job import TargetRef
from draftsmith.engine.model.decoder import Decoder
from draftsmith.engine.model.fused import FusedLayers
from draftsmith.engine.model.loading import load_target
from draftsmith.engine.model.packing import Packing
from draftsmith.kernels.backend import use_backend
from draftsmith.kernels.bf12_gemv import Bf12Weight
from draftsmith.kernels.panels import PanelWeight
from tests.support.tinymodels import CONFIGS, random_reference, save_tiny, tiny_tokenizer


def load(folder: Path, form: str, dtype: str = "bfloat16") -> Decoder:
    ref = TargetRef(path=str(folder), dtype=dtype, weights=form)  # type: ignore[arg-type]
    model = load_target(ref).model
    assert isinstance(model, Decoder)
    return model


def run(model: Decoder) -> list[torch.Tensor]:
    """Hidden states and logits of a prefill, of a step, and of a trimmed head."""
    cache = model.new_cache(num_slots=1, capacity=64)
    slot = cache.allocate()
    first = model.forward(causal_rows(slot, [5, 9, 33, 2, 17, 40, 8], 0), cache)
    cache.keep(slot, range(7))
    step = model.forward(causal_rows(slot, [11], 7), cache)
    trimmed = model.trim_head([3, 9, 21, 22, 63])
    rows = [first.last[0], step.last[0]]
    return [*rows, *(model.head(row) for row in rows), model.head(rows[0], trimmed)]


@pytest.mark.parametrize("family", CONFIGS)
def test_every_family_has_the_same_bits(family: str, tmp_path: Path, cpp: None) -> None:
    save_tiny(tmp_path, family=family)
    plain, packed = load(tmp_path, "plain"), load(tmp_path, "bf12")
    assert packed.info.weight_bytes < plain.info.weight_bytes
    assert packed.info.fingerprint == plain.info.fingerprint
    for ours, theirs in zip(run(packed), run(plain), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("backend", ["cpp", "reference"])
def test_single_operations_take_packed_weights_too(
    backend: str, tmp_path: Path, cpp: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny(tmp_path)
    plain, packed = load(tmp_path, "plain"), load(tmp_path, "auto")
    assert packed.info.weight_bytes < plain.info.weight_bytes
    monkeypatch.setattr(FusedLayers, "is_available", property(lambda _: False))
    with use_backend(backend):  # type: ignore[arg-type]
        for ours, theirs in zip(run(packed), run(plain), strict=True):
            assert torch.equal(ours, theirs)


def test_auto_packs_bf16_alone(tmp_path: Path, cpp: None) -> None:
    save_tiny(tmp_path)
    sizes = {
        (form, dtype): load(tmp_path, form, dtype).info.weight_bytes
        for form in ("auto", "plain")
        for dtype in ("bfloat16", "float16", "float32")
    }
    assert sizes["auto", "bfloat16"] < sizes["plain", "bfloat16"]
    assert sizes["auto", "float16"] == sizes["plain", "float16"]
    assert sizes["auto", "float32"] == sizes["plain", "float32"]


def test_without_kernels_auto_leaves_weights_alone(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    with use_backend("reference"):
        assert load(tmp_path, "auto").info.weight_bytes == load(tmp_path, "plain").info.weight_bytes
        with pytest.raises(EngineInputError, match="C\\+\\+ kernels.*weights=plain"):
            load(tmp_path, "bf12")


def test_what_cannot_be_packed_says_so(tmp_path: Path, cpp: None) -> None:
    save_tiny(tmp_path)
    with pytest.raises(EngineInputError, match="bf12.*float32"):
        load(tmp_path, "bf12", "float32")
    with pytest.raises(EngineInputError, match="'fp4' is not one of auto, plain, bf12"):
        load(tmp_path, "fp4")


def test_a_matrix_that_gains_nothing_stays_plain(cpp: None) -> None:
    packing = Packing()
    packing.check("empty")
    noise = torch.randint(-(1 << 15), 1 << 15, (16, 64)).to(torch.int16).view(torch.bfloat16)
    kept = packing(noise)
    assert isinstance(kept, PanelWeight)
    assert torch.equal(kept.unpack().view(torch.int16), noise.view(torch.int16))
    with pytest.raises(UnsupportedError, match="tiny: all 1 matrices.*outside the sixteen"):
        packing.check("tiny")
    assert isinstance(packing(torch.randn(12, 512).to(torch.bfloat16)), Bf12Weight)
    packing.check("tiny")
    assert packing.num_packed == 1 and len(packing.reasons) == 1


def test_a_model_that_runs_through_transformers_is_refused(tmp_path: Path, cpp: None) -> None:
    config = GPT2Config(vocab_size=64, n_embd=32, n_layer=1, n_head=2, n_positions=64)
    random_reference(config).save_pretrained(tmp_path)
    tiny_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(UnsupportedError, match="through transformers: use weights=plain"):
        load(tmp_path, "bf12")
