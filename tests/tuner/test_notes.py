"""What a result says of prompts that are not in it, and of others who measured meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from draftsmith.engine.job import MeasureResult
from draftsmith.store.owners import this_process
from draftsmith.store.repository import Repository
from tests.support.fakeworld import FakeExecutor, World
from tests.support.tuning import Bench, Recorder


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


class Listener(Recorder):
    """Keeps the notes of the phases as well."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []

    def on_phase(self, phase: str, note: str, seconds_left: float) -> None:
        super().on_phase(phase, note, seconds_left)
        self.notes.append(note)


class Forgetful(FakeExecutor):
    """Answers every request but one."""

    lost = ""

    def next_result(self, timeout_s: float | None) -> MeasureResult | None:
        result = super().next_result(timeout_s)
        if result is None:
            return None
        if not self.lost:
            self.lost = result.outputs[0].request_id
        kept = tuple(output for output in result.outputs if output.request_id != self.lost)
        return replace(result, outputs=kept)


def test_a_prompt_without_output_is_not_laid_to_the_budget(bench: Bench) -> None:
    world = World(speed=lambda config: 1.5)
    executor = Forgetful(world)
    result = bench.run(world, executor=executor)
    assert result.prompts["tuning"] + result.prompts["heldout"] == 16 + 12 - 1
    assert not any("budget" in note for note in result.notes)
    note = f"stock gave no output for 1 prompt, left out; the first: {executor.lost!r}"
    assert note in result.notes


def test_what_the_budget_does_not_hold_is_counted_in_prompts(bench: Bench) -> None:
    result = bench.run(
        World(speed=lambda config: 1.5), budget_s=300.0, num_tuning=400, num_heldout=200, turns=2
    )
    [note] = [note for note in result.notes if "budget holds" in note]
    used = result.prompts["tuning"] + result.prompts["heldout"]
    assert f"the budget holds {used // 2} of 600 prompts" in note


class Slow(FakeExecutor):
    """Its workers' kernels run in their slower form."""

    def next_result(self, timeout_s: float | None) -> MeasureResult | None:
        result = super().next_result(timeout_s)
        return result and replace(result, kernel_note="plain torch runs: no compiler")


def test_slower_kernels_of_the_workers_are_told_early_and_kept(bench: Bench) -> None:
    world = World(speed=lambda config: 1.5)
    bench.progress = listener = Listener()
    first = bench.run(world, executor=Slow(world))
    assert first.notes.count("plain torch runs: no compiler") == 1
    assert listener.notes.index("plain torch runs: no compiler") == 1  # the baseline's own is first
    again = bench.run(world, resume=first.run)
    assert again.notes == first.notes, "a repeated verdict says the same"


def test_another_driver_of_the_deployment_is_named(bench: Bench) -> None:
    world = World(speed=lambda config: 1.5)
    bench.progress = listener = Listener()
    first = bench.run(world)
    assert not any("worked on" in note for note in first.notes)
    repository = Repository(bench.database, clock=world.now)
    rival = replace(this_process(), host="elsewhere", pid=4321)
    repository.claim_run(repository.run(first.run).id, rival, 1e9)
    second = bench.run(world, resume=False)
    assert second.run != first.run
    note = (
        f"run {first.run} of this deployment is being worked on by process 4321 on elsewhere: its "
        "timings and yours disturb each other; wait for it or end it"
    )
    assert note in second.notes
    assert any(note in told for told in listener.notes)
    again = bench.run(world, resume=second.run)
    assert again.notes == second.notes, "a repeated verdict says the same"
