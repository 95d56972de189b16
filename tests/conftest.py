"""Environment and the one heavy fixture that all tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Set before anything imports torch or transformers: no network, two threads at most.
os.environ.update(
    HF_HUB_OFFLINE="1",
    TRANSFORMERS_OFFLINE="1",
    TOKENIZERS_PARALLELISM="false",
    OMP_NUM_THREADS="2",
    RAY_USAGE_STATS_ENABLED="0",
)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """Checkpoint folder of the embedded SmolLM2-135M-Instruct; skips where it is not installed."""
    from draftsmith.engine.errors import EngineEnvironmentError
    from draftsmith.engine.model.embedded import embedded_folder

    try:
        return embedded_folder()
    except EngineEnvironmentError as error:
        pytest.skip(str(error))
