"""Kills the processes of real tuning runs at random moments and checks what the store keeps.

``endure`` drives the ``draftsmith`` command as a user would: start it, see it die, start it again.
As a script it is the long form: ``python tests/support/kills.py FOLDER --kills 20 --json FILE``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from commands import BrokenPromiseError, Driver, Kind, Scene, check_kept

KINDS: tuple[Kind, ...] = get_args(Kind)
FRUITLESS = 8  # runs in a row that end before anything could be killed
EARLY = 1 / 3  # share of drivers that are killed while they start
MORE_TRIALS = (0, 1, 2)  # that finish before the next kill
ENVIRONMENT = 3  # exit code of a command that cannot go on


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """One kill: who, where the run was, and what came of it."""

    kind: str
    stage: str
    driver_age_s: float
    num_finished: int
    in_flight: str
    then: str


@dataclass(slots=True, kw_only=True)
class Report:
    """``begun_again`` counts trials that dead drivers left half done, ``failed`` trials that were
    given up with their reasons.
    """

    kills: list[Kill] = field(default_factory=list)
    runs: list[dict[str, Any]] = field(default_factory=list)
    num_starts: int = 0
    num_finished: int = 0
    begun_again: int = 0
    failed: tuple[str, ...] = ()


class Siege:
    """Kills processes of ``kinds`` in order, each at a random moment: up to ``spread_s`` after it
    is there and none, one or two more trials are finished; over as many runs as that takes. After
    each kill, each end and each restart the store is held against what it held before.
    """

    def __init__(
        self, scene: Scene, kinds: Sequence[Kind], *, seed: int, spread_s: float, max_trials: int
    ) -> None:
        self._scene = scene
        self._left = list(kinds)
        self._rng = random.Random(seed)
        self._spread_s = spread_s
        self._max_trials = max_trials
        self._report = Report()
        self._kept = scene.snapshot()

    def run(self) -> Report:
        """Until every kill is done and the last run ended. Raises BrokenPromiseError."""
        report = self._report
        fruitless = 0
        while self._left or not report.runs:
            before = len(self._left)
            arguments = self._scene.tune_arguments(
                seed=len(report.runs), max_trials=self._max_trials
            )
            while not self._drive(arguments):
                pass
            fruitless = fruitless + 1 if len(self._left) == before else 0
            if fruitless == FRUITLESS:
                raise BrokenPromiseError(
                    f"{fruitless} runs ended before a {self._left[0]} could be killed: none was"
                    " found, or the spread is too long for runs this short"
                )
        report.num_starts = self._scene.num_starts
        report.num_finished = len(self._kept.finished)
        report.begun_again = self._kept.lost_leases
        report.failed = self._kept.failed
        return report

    def _drive(self, arguments: Sequence[str]) -> bool:
        """Start the command and kill what is to be killed; whether the run is done."""
        driver, before = self._scene.start(arguments), len(self._report.kills)
        while self._left and self._strike(driver):
            self._check()
        code = driver.finish()
        self._check()
        return self._judge_end(driver, code, self._report.kills[before:])

    def _strike(self, driver: Driver) -> bool:
        """Kill one process at a random moment; False when the command ended before."""
        kind = self._left[0]
        early = kind == "driver" and self._report.kills and self._rng.random() < EARLY
        if not early and not driver.wait(driver.holds_run):
            return False
        enough = len(self._kept.finished) + (0 if early else self._rng.choice(MORE_TRIALS))
        if not driver.wait(lambda: self._scene.num_finished() >= enough):
            return False
        if not driver.wait(lambda: driver.victim(kind) is not None):
            return False
        moment = time.monotonic() + self._rng.uniform(0.0, self._spread_s)
        while True:
            if not driver.wait(lambda: time.monotonic() >= moment):
                return False
            self._check()
            victim = driver.victim(kind)  # a worker may have ended with its job meanwhile
            if victim is not None:
                break
        standing = self._kept
        age_s = driver.age_s
        os.kill(victim.pid, signal.SIGKILL)
        self._left.pop(0)
        busy = [stage for state, stage, _ in standing.runs.values() if state == "running"]
        self._report.kills.append(
            Kill(
                kind=kind,
                stage=busy[-1] if busy and not early else "start",
                driver_age_s=round(age_s, 1),
                num_finished=len(standing.finished),
                in_flight=standing.in_flight,
                then="the same command resumed" if kind == "driver" else "the driver went on",
            )
        )
        return kind != "driver"

    def _check(self) -> None:
        now = self._scene.snapshot()
        dead = sum(kill.kind == "driver" for kill in self._report.kills)
        check_kept(self._kept, now, dead)
        self._kept = now

    def _judge_end(self, driver: Driver, code: int, struck: Sequence[Kill]) -> bool:
        """``struck``: the kills while this driver ran; only they excuse that it failed."""
        text = driver.stderr()
        if "Traceback" in text or "a fault in draftsmith" in text:
            raise BrokenPromiseError(f"the command failed:\n{text}")
        if code == -signal.SIGKILL and struck and struck[-1].kind == "driver":
            return False
        if code == ENVIRONMENT and struck and struck[-1].kind != "driver":
            said = text.strip().splitlines()[-1]
            self._report.kills[-1] = replace(struck[-1], then=f"exit 3, then resumed: {said}")
            return False
        if code != 0:
            raise BrokenPromiseError(f"the command ended with {code}:\n{text}")
        self._judge_run(driver.document())
        return True

    def _judge_run(self, document: dict[str, Any]) -> None:
        left = self._scene.leftovers()
        if left:
            raise BrokenPromiseError(f"left behind: {left}")
        verify = self._scene.start(["verify", document["bundle_path"], "--json"])
        if verify.finish() != 0:
            raise BrokenPromiseError(f"verify refuses the bundle:\n{verify.stderr()}")
        self._report.runs.append(
            {
                "run": document["run"],
                "verdict": document["verdict"],
                "summary": document["summary"],
                "verify": verify.document()["verdict"],
            }
        )


def endure(
    scene: Scene, kinds: Sequence[Kind], *, seed: int, spread_s: float, max_trials: int = 3
) -> Report:
    """Kill as ``Siege`` does, and leave no process behind whatever happens."""
    try:
        return Siege(scene, kinds, seed=seed, spread_s=spread_s, max_trials=max_trials).run()
    finally:
        scene.close()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="an empty folder for target, store and logs")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--spread", type=float, default=8.0, help="seconds")
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args(arguments)
    kinds = [KINDS[index % len(KINDS)] for index in range(options.kills)]
    random.Random(options.seed).shuffle(kinds)
    scene = Scene(options.folder, num_prompts=40, max_tokens=96)
    report = endure(scene, kinds, seed=options.seed, spread_s=options.spread, max_trials=6)
    for number, kill in enumerate(report.kills, start=1):
        print(
            f"{number:2} {kill.kind:7} {kill.stage:9} {kill.driver_age_s:6.1f} s"
            f" {kill.num_finished:3} finished, {kill.in_flight or 'nothing'} in flight: {kill.then}"
        )
    if options.json:
        options.json.write_text(json.dumps(asdict(report), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
