"""A tiny model, a workload, and one tuned run that the reading commands share."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner


def invoke(*arguments: object) -> Result:
    """Run the command in this process; stdout and stderr apart."""
    from draftsmith.cli.main import app

    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def notes_of(document: dict[str, Any]) -> list[str]:
    """The document's notes without the one of a machine whose kernels run in a slower form."""
    from draftsmith.cli.wiring import kernel_note

    return [note for note in document["notes"] if note != kernel_note("cpu")]


@dataclass(frozen=True)
class Tuned:
    """What one run of ``tune`` left behind."""

    document: dict
    stderr: str
    store: Path

    @property
    def bundle(self) -> Path:
        return Path(self.document["bundle_path"])


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.support.tinymodels import save_tiny

    return save_tiny(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def workload(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("workload") / "prompts.jsonl"
    rows = [
        {"prompt": f"once upon a time number {i} there was", "category": "ab"[i % 2]}
        for i in range(10)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="session")
def tune_arguments(tiny: Path, workload: Path) -> list[object]:
    """The smallest run there is: one trial of one drafter, in this process."""
    return [
        *("tune", "--target", tiny, "--workload", workload, "--dtype", "float32", "--in-process"),
        *("--budget", "10m", "--max-trials", 1, "--drafters", "ngram", "--max-tokens", 8),
        *("--heldout", 0.4),
    ]


@pytest.fixture(scope="session")
def tuned(tune_arguments: list[object], tmp_path_factory: pytest.TempPathFactory) -> Tuned:
    folder = tmp_path_factory.mktemp("tuned")
    store = folder / "store.db"
    result = invoke(*tune_arguments, "--store", store, "--out", folder / "out", "--json")
    assert result.exit_code == 0, result.stderr
    return Tuned(document=json.loads(result.stdout), stderr=result.stderr, store=store)
