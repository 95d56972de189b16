"""The tuning loop, in the order of design.md's life of a run:

  1  open or resume the run, under the driver's lock
  2  baseline: stock's outputs and speed
3-6  calibrate, trace, simulate, gap: not part of this version
7-8  explore and gate
  9  integrate: not part of this version
 10  confirm
 11  remember and export
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from draftsmith.store.bundle import write_bundle
from draftsmith.store.canonical import fingerprint
from draftsmith.store.database import OptunaTarget
from draftsmith.store.owners import this_process
from draftsmith.store.records import Budget, RunRecord
from draftsmith.store.repository import Repository
from draftsmith.tuner.agents.agent import Agent
from draftsmith.tuner.agents.neighbours import NeighbourAgent
from draftsmith.tuner.agents.rules import starting_points
from draftsmith.tuner.agents.sampler import SamplerAgent, open_storage
from draftsmith.tuner.baseline import Baseline, measure_baseline
from draftsmith.tuner.conclude import RIVALS, bundle_parts, make_result
from draftsmith.tuner.confirm import Confirmation, confirm
from draftsmith.tuner.deployment import Deployment
from draftsmith.tuner.dispatch import LEASE_S, Dispatcher
from draftsmith.tuner.errors import TunerInterrupted
from draftsmith.tuner.executor import Executor
from draftsmith.tuner.explore import STAGE as EXPLORE
from draftsmith.tuner.explore import Explorer
from draftsmith.tuner.incumbent import Incumbent, read_incumbent
from draftsmith.tuner.knobs import SpaceFacts
from draftsmith.tuner.ladder import ranking
from draftsmith.tuner.material import Material, check_incumbent, load_material
from draftsmith.tuner.progress import Progress, Silent
from draftsmith.tuner.result import TuneResult
from draftsmith.tuner.session import SECONDS, Session
from draftsmith.tuner.space import config_json, knob_table, validate
from draftsmith.tuner.stopwatch import Stopwatch
from draftsmith.tuner.verdict import Decision, decide

FINALISTS = "finalists"
NEIGHBOUR_TURNS = 4  # of the neighbours for one of the sampler: most budgets hold few trials


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """How one call of ``tune`` behaves. ``resume`` as in ``Repository.open_run``: True, False or a
    run's uuid. ``incumbent`` is a path for ``incumbent.read_incumbent``. Bundles are written under
    ``bundle_root``. ``optuna`` is ``optuna_storage(database)``; None keeps the study in memory.
    ``material`` is what ``load_material`` gave, where the caller has it already.
    """

    bundle_root: Path
    resume: bool | str = True
    incumbent: Path | None = None
    optuna: OptunaTarget | None = None
    material: Material | None = None
    clock: Callable[[], float] = field(default=time.monotonic)


def tune(
    deployment: Deployment,
    repository: Repository,
    executor: Executor,
    options: RunOptions,
    progress: Progress | None = None,
) -> TuneResult:
    """Tune one deployment and return the verdict; the store holds everything, so a killed call
    resumes, and resuming a finished run repeats its verdict without measuring.

    Raises TunerInputError (BudgetError with the minimum, once stock's speed is known),
    TunerEnvironmentError when no worker can measure stock, RunBusyError while another driver has
    the run, other StoreErrors, and TunerInterrupted after KeyboardInterrupt: trials are given back
    and the run is marked interrupted. The caller closes ``executor`` and the database.
    """
    material = options.material or load_material(deployment)
    incumbent = read_incumbent(options.incumbent, material.facts) if options.incumbent else None
    if incumbent is not None:
        check_incumbent(incumbent.config, material)
    run = repository.open_run(
        deployment.description(),
        _settings(deployment, material.facts, incumbent),
        seed=deployment.effort.seed,
        budget=Budget(trials=deployment.effort.max_trials, seconds=deployment.effort.budget_s),
        resume=options.resume,
    )
    session = _open(run, deployment, repository, executor, options, progress or Silent(), material)
    try:
        result = _drive(session, options, incumbent)
    except KeyboardInterrupt as error:
        session.stop()
        repository.finish_run(run.id, "interrupted")
        raise TunerInterrupted(f"run {run.uuid} is kept, the same command resumes it") from error
    except Exception:
        session.stop()
        repository.finish_run(run.id, "failed")
        raise
    repository.finish_run(run.id, "done", result.to_json())
    return result


def _drive(session: Session, options: RunOptions, incumbent: Incumbent | None) -> TuneResult:
    """The page that this package is about."""
    runs_today = incumbent.config if incumbent else None

    session.enter("baseline", "; ".join(["stock decodes the prompts", *_note_rivals(session)]))
    baseline = measure_baseline(session, num_incumbents=0 if incumbent is None else 1)

    session.enter("explore", f"{len(baseline.tuning)} tuning prompts")
    facts = replace(session.material.facts, num_ranked=len(baseline.inputs.draft_vocab_ids))
    agents = _agents(session, facts, options)
    explorer = Explorer(session, baseline, facts, agents, runs_today)
    explorer.restore()
    if session.artifact(FINALISTS) is None:  # once held-out prompts were looked at, no more search
        explorer.run()
    climbers = list(explorer.climbers.values())
    finalists = session.artifact(FINALISTS)
    if finalists is None:
        chosen = ranking(climbers)[: session.deployment.effort.finalists]
        finalists = [config_json(climber.config) for climber in chosen]
        session.keep(FINALISTS, finalists)

    session.enter("confirm", f"{len(baseline.heldout)} held-out prompts")
    confirmations: list[Confirmation] = []
    for place, finalist in enumerate(finalists):
        made = confirm(
            session,
            baseline,
            validate(finalist),
            runs_today,
            place=place,
            num_finalists=len(finalists),
        )
        confirmations.append(made)
        if made.wins:
            break
    decision = decide(confirmations, climbers, runs_today)

    session.enter("export", "writing the bundle")
    return _export(session, baseline, explorer, decision, incumbent, options)


def _export(
    session: Session,
    baseline: Baseline,
    explorer: Explorer,
    decision: Decision,
    incumbent: Incumbent | None,
    options: RunOptions,
) -> TuneResult:
    folder = options.bundle_root / f"{decision.config.drafter}-{session.run.uuid[:8]}"
    climbers = list(explorer.climbers.values())
    result = make_result(session, baseline, climbers, decision, incumbent, folder)
    parts = bundle_parts(session, baseline, decision, result)
    record = write_bundle(folder, parts, replace=True)
    session.repository.add_bundle(session.run.id, record)
    session.save_seconds()
    return result


def _open(
    run: RunRecord,
    deployment: Deployment,
    repository: Repository,
    executor: Executor,
    options: RunOptions,
    progress: Progress,
    material: Material,
) -> Session:
    """Claim the run; trials that a dead driver held go back to the queue."""
    owner = this_process()
    repository.claim_run(run.id, owner, LEASE_S)
    spent = repository.load_artifact(run.id, SECONDS) or {}
    watch = Stopwatch(options.clock, deployment.effort.budget_s, spent)

    def beat() -> None:
        repository.save_artifact(run.id, SECONDS, watch.by_phase())

    return Session(
        deployment=deployment,
        repository=repository,
        dispatcher=Dispatcher(repository, executor, run.id, owner, options.clock, beat),
        run=run,
        watch=watch,
        progress=progress,
        material=material,
        num_workers=executor.num_workers,
    )


def _note_rivals(session: Session) -> list[str]:
    """Who else works on this deployment now, kept for the verdict too: on one machine the timings
    of both are disturbed. Nobody is asked about when a finished run only repeats its verdict.
    """
    if session.run.verdict is not None:
        return []
    notes = [
        f"run {rival.uuid} of this deployment is being worked on by process {rival.owner.pid} on "
        f"{rival.owner.host}: its timings and yours disturb each other; wait for it or end it"
        for rival in session.repository.rivals(session.run.id)
        if rival.owner is not None
    ]
    if notes:
        session.keep(RIVALS, list(dict.fromkeys([*(session.artifact(RIVALS) or []), *notes])))
    return notes


def _agents(session: Session, facts: SpaceFacts, options: RunOptions) -> list[Agent]:
    """The agents of this version. Optuna's storage is opened here, while the run is claimed."""
    run = session.run
    storage = None
    if options.optuna is not None:
        storage = open_storage(options.optuna.url, options.optuna.engine_kwargs)
    stored = session.repository.trials(run.id, stage=EXPLORE)
    starts = starting_points(facts)
    sampler = SamplerAgent(
        facts,
        study_name=f"draftsmith {run.uuid}",
        seed=run.seed,
        storage=storage,
        starts=starts,
        attached=[t.optuna_number for t in stored if t.optuna_number is not None],
    )
    neighbours = NeighbourAgent(facts, patience=len(starts))
    return [sampler, *[neighbours] * NEIGHBOUR_TURNS]


def _settings(
    deployment: Deployment, facts: SpaceFacts, incumbent: Incumbent | None
) -> dict[str, object]:
    """What must not change within a run: the space above all (cases.md B31)."""
    return {
        "space": fingerprint({"knobs": knob_table(facts), "families": list(facts.searched)}),
        "finalists": deployment.effort.finalists,
        "incumbent": config_json(incumbent.config) if incumbent else None,
    }
