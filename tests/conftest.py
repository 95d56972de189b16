"""Environment, and the fixtures that several folders of tests share."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

# Set before anything imports torch or transformers: no network; one thread, since the models of
# most tests are too small to share and spinning threads slow a busy machine down.
os.environ.update(
    HF_HUB_OFFLINE="1",
    TRANSFORMERS_OFFLINE="1",
    TOKENIZERS_PARALLELISM="false",
    TRITON_INTERPRET=os.environ.get("TRITON_INTERPRET", "1"),  # 0: compile, on a card
    OMP_NUM_THREADS="1",
    RAY_USAGE_STATS_ENABLED="0",
)


# A suite that was started in the background ignores SIGINT, and so would all that its tests start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """Checkpoint folder of the embedded SmolLM2-135M-Instruct; skips where it is not installed."""
    from draftsmith.engine.errors import EngineEnvironmentError
    from draftsmith.engine.model.embedded import embedded_folder

    try:
        return embedded_folder()
    except EngineEnvironmentError as error:
        pytest.skip(str(error))


@pytest.fixture
def cpp() -> Iterator[None]:
    """Force the C++ kernels; skip, saying why, where they cannot run."""
    from draftsmith.kernels.backend import use_backend
    from draftsmith.kernels.errors import KernelEnvironmentError

    try:
        with use_backend("cpp"):
            pass
    except KernelEnvironmentError as error:
        pytest.skip(str(error))
    with use_backend("cpp"):
        yield
