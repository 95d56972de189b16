"""``kill -9`` of driver, worker and raylet, Ctrl-C and SIGTERM, on the real command with Ray."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import Scene, check_kept
from kills import KINDS, endure

pytestmark = pytest.mark.ray


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path / "scene", num_prompts=10, max_tokens=24)
    yield made
    made.close()


@pytest.mark.timeout(900)
def test_kills_lose_and_repeat_nothing(scene: Scene) -> None:
    """The short form: one of each. ``make evidence`` runs twenty."""
    report = endure(scene, ["worker", "driver", "raylet"], seed=5, spread_s=1.0, max_trials=1)
    assert sorted(kill.kind for kill in report.kills) == sorted(KINDS)
    assert [run["verify"] for run in report.runs][-1] == "lossless"
    assert report.failed == ()


@pytest.mark.timeout(900)
def test_interrupted_command_leaves_nothing_and_resumes(scene: Scene) -> None:
    """Ctrl-C, then SIGTERM to the resumed command, then to the end."""
    arguments = scene.tune_arguments(max_trials=1)
    for signal_ in (signal.SIGINT, signal.SIGTERM):
        command = scene.start(arguments)
        assert command.wait(command.holds_run) and command.wait(lambda: scene.num_finished() > 0)
        before = scene.snapshot()
        os.killpg(command.process.pid, signal_)  # as a terminal does: the whole group
        assert command.finish() == 130, command.stderr()
        assert "interrupted" in command.stderr() and "Traceback" not in command.stderr()
        assert scene.leftovers() == []
        check_kept(before, scene.snapshot(), num_driver_kills=0)
        [(state, _, owner)] = scene.snapshot().runs.values()
        assert (state, owner) == ("interrupted", None)
    last = scene.start(arguments)
    assert last.finish() == 0, last.stderr()
    assert last.document()["resumed"] and last.document()["verdict"]
    check_kept(before, scene.snapshot(), num_driver_kills=0)
    assert scene.leftovers() == []
