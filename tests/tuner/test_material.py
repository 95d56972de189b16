"""What a run works on: rows that cannot be read, draft models that cannot serve the requests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tinymodels import save_tiny

from draftsmith.engine.errors import EngineInputError
from draftsmith.tuner.deployment import Deployment
from draftsmith.tuner.deployment_file import load_deployment
from draftsmith.tuner.errors import TunerInputError
from draftsmith.tuner.material import load_material

PROMPT = "once upon a time"  # as many tokens as characters


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny(tmp_path_factory.mktemp("models") / "target", max_position_embeddings=512)


def deployment_of(target: Path, folder: Path, *rows: object, **flags: object) -> Deployment:
    workload = folder / "prompts.jsonl"
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    workload.write_text("\n".join(lines) + "\n")
    given = {name.replace("__", "."): value for name, value in flags.items()}
    return load_deployment(None, {"target": str(target), "workload": str(workload), **given})


def prompts(count: int) -> list[dict[str, str]]:
    return [{"prompt": PROMPT[: len(PROMPT) - index]} for index in range(count)]


def test_bad_rows_are_refused_by_line_unless_they_are_to_be_skipped(
    target: Path, tmp_path: Path
) -> None:
    rows = [*prompts(2), "{broken", {"prompt": 7}]
    with pytest.raises(EngineInputError, match="line 3.*skip_bad_rows"):
        load_material(deployment_of(target, tmp_path, *rows))
    material = load_material(deployment_of(target, tmp_path, *rows, workload__skip_bad_rows=True))
    assert len(material.tuning) + len(material.heldout) == 2
    assert material.num_skipped == 2
    assert material.skipped_note is not None
    assert "2 rows could not be read" in material.skipped_note
    assert "line 3" in material.skipped_note


def test_without_bad_rows_skipping_changes_nothing(target: Path, tmp_path: Path) -> None:
    plain = deployment_of(target, tmp_path, *prompts(4))
    skipping = deployment_of(target, tmp_path, *prompts(4), workload__skip_bad_rows=True)
    assert skipping.fingerprint() == plain.fingerprint()
    first, second = load_material(plain), load_material(skipping)
    assert (second.tuning, second.heldout) == (first.tuning, first.heldout)
    assert second.skipped_note is None


def test_a_draft_model_needs_the_positions_of_the_longest_request(
    target: Path, tmp_path: Path
) -> None:
    draft = save_tiny(tmp_path / "draft", num_layers=1, max_position_embeddings=64)
    flags = {"draft_model": str(draft)}
    fits = 64 - len(PROMPT)
    load_material(deployment_of(target, tmp_path, *prompts(2), regime__max_tokens=fits, **flags))
    longer = deployment_of(target, tmp_path, *prompts(2), regime__max_tokens=fits + 1, **flags)
    with pytest.raises(TunerInputError) as refusal:
        load_material(longer)
    for part in (str(draft), "64 positions", "has 512", "need 65", "max_tokens"):
        assert part in str(refusal.value)


def test_a_draft_model_needs_the_positions_that_conversations_may_grow_to(
    target: Path, tmp_path: Path
) -> None:
    draft = save_tiny(tmp_path / "draft", num_layers=1, max_position_embeddings=64)
    rows = [{"turns": [prompt["prompt"], "go on"]} for prompt in prompts(2)]
    flags = {"draft_model": str(draft), "regime__max_tokens": 14}
    capped = {**flags, "workload__max_prompt_tokens": 50}
    load_material(deployment_of(target, tmp_path, *rows, **capped))
    with pytest.raises(TunerInputError, match="64 positions.*512.*may need 512"):
        load_material(deployment_of(target, tmp_path, *rows, **flags))
