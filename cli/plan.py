"""``tune --dry-run``: what a run would do, from stock's speed on a few prompts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rich.console import Console

from draftsmith.cli.errors import CliEnvironmentError, CliInputError
from draftsmith.cli.output import facts, table
from draftsmith.cli.wiring import open_executor
from draftsmith.engine.job import STOCK, MeasureJob
from draftsmith.engine.types import SpecConfig
from draftsmith.tuner.agents.rules import starting_points
from draftsmith.tuner.allotment import (
    Supply,
    allot,
    baseline_s,
    reserve_s,
    trial_s,
)
from draftsmith.tuner.duration import format_duration
from draftsmith.tuner.incumbent import Incumbent
from draftsmith.tuner.ladder import rung_slices
from draftsmith.tuner.material import Material
from draftsmith.tuner.space import config_text, knob_table

PILOT_PROMPTS = 2


def make_plan(material: Material, incumbent: Incumbent | None) -> dict[str, Any]:
    """The plan as JSON. Raises BudgetError, with the minimum, when the budget is too small."""
    deployment = material.deployment
    budget_s = deployment.effort.budget_s
    stock_s = _seconds_a_prompt(material)
    supply = Supply(
        left_s=budget_s,
        num_tuning=len(material.tuning),
        num_heldout=len(material.heldout),
        num_incumbents=0 if incumbent is None else 1,
        concurrency=deployment.regime.concurrency,
    )
    share = allot(stock_s, supply)
    stock_part_s = baseline_s(stock_s, share, supply)
    after = replace(supply, left_s=budget_s - stock_part_s)
    confirming_s = reserve_s(stock_s, share.num_heldout, after)
    explore_s = max(0.0, budget_s - stock_part_s - confirming_s)
    first_rung = len(rung_slices(share.num_tuning, supply.concurrency)[0])
    first_s = trial_s(stock_s, first_rung, supply.concurrency)
    trials = int(explore_s / first_s)
    if deployment.effort.max_trials is not None:
        trials = min(trials, deployment.effort.max_trials)
    return {
        "target": deployment.target.path,
        "device": deployment.target.device,
        "workload": deployment.workload.path,
        "drafters": list(material.facts.searched),
        "incumbent": config_text(incumbent.config) if incumbent else None,
        "prompts": {
            "tuning": share.num_tuning,
            "heldout": share.num_heldout,
            "of_tuning": len(material.tuning),
            "of_heldout": len(material.heldout),
            "too_long": material.num_too_long,
            "duplicates": material.num_duplicates,
        },
        "stock_s_per_prompt": stock_s,
        "minutes": {
            "baseline": stock_part_s / 60,
            "explore": explore_s / 60,
            "confirm": confirming_s / 60,
            "budget": budget_s / 60,
        },
        "trials_at_most": trials,
        "first_rung_prompts": first_rung,
        "starting_points": [
            {"config": config_text(point.config), "why": point.why}
            for point in starting_points(material.facts)
        ],
        "knobs": knob_table(material.facts),
    }


def draw_plan(console: Console, plan: dict[str, Any]) -> None:
    """The plan for people; the knobs are in ``--json`` and in ``draftsmith show knobs``."""
    prompts, minutes = plan["prompts"], plan["minutes"]
    console.print(
        facts(
            [
                ("target", f"{plan['target']} on {plan['device']}"),
                ("workload", plan["workload"]),
                ("drafters", ", ".join(plan["drafters"])),
                ("incumbent", plan["incumbent"]),
                ("tuning prompts", f"{prompts['tuning']} of {prompts['of_tuning']}"),
                ("held-out prompts", f"{prompts['heldout']} of {prompts['of_heldout']}"),
                ("stock", f"{plan['stock_s_per_prompt']:.2f} s a prompt, timed now"),
                *((name, format_duration(60 * value)) for name, value in minutes.items()),
                (
                    "trials",
                    f"at most {plan['trials_at_most']}, {plan['first_rung_prompts']} prompts each;"
                    " fewer, since the best ones climb to more prompts",
                ),
            ]
        )
    )
    rows = [(point["config"], point["why"]) for point in plan["starting_points"]]
    console.print()
    console.print(table(("measured first", "why"), rows))


def _seconds_a_prompt(material: Material) -> float:
    """Stock's seconds for a prompt of as many turns as the workload's have, from its first turn."""
    deployment = material.deployment
    count = max(PILOT_PROMPTS, deployment.regime.concurrency)
    asked = [material.request(prompt, 0, {}) for prompt in material.tuning[:count]]
    requests = tuple(request for request in asked if request is not None)
    job = MeasureJob(
        job_id="plan",
        target=deployment.target,
        requests=requests,
        configs={STOCK: SpecConfig()},
        concurrency=deployment.regime.concurrency,
    )
    with open_executor(deployment.target.device, in_process=True) as executor:
        executor.submit(job)
        result = executor.next_result(None)
    if result is None or result.status != "ok":
        kind = CliInputError if result and result.refused else CliEnvironmentError
        raise kind(f"stock could not be timed: {result.reason if result else 'no answer'}")
    prompts = material.tuning + material.heldout
    turns = sum(prompt.num_turns for prompt in prompts) / len(prompts)
    return turns * sum(timing.seconds for timing in result.timings) / len(requests)
