"""The search space as Optuna sees it: define-by-run parameters of one drafter family.

Names are ``family.parameter``, so that families with other ranges never share a distribution. One
walk (``suggest``) serves both ways: an Optuna trial answers it with samples, a ``FixedPoint`` with
the values of a configuration at hand, which is how starting points are enqueued.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from draftsmith.engine.drafters.registry import MATCHERS
from draftsmith.engine.types import SpecConfig
from draftsmith.tuner.knobs import KNOBS, TREES_OF, SpaceFacts, high_limit
from draftsmith.tuner.space import normalise

WHOLE_VOCAB_FLOOR = 1024  # smallest trim searched for an ordinary vocabulary
SMALL_VOCAB = 16 * WHOLE_VOCAB_FLOOR  # under this the smallest trim is V / 64
MAX_SEARCHED_NODES = 64  # per sequence; trees beyond rarely pay before a GPU is memory bound
MIN_LAYERS_TO_SKIP = 6


class Trial(Protocol):
    """The part of ``optuna.Trial`` that is used."""

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> int: ...

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float: ...

    def suggest_categorical(self, name: str, choices: Sequence[str]) -> Any: ...


class NotExpressibleError(Exception):
    """A configuration lies outside what is searched (a knob, a value between grid points)."""


def draft_vocab_grid(facts: SpaceFacts) -> tuple[int | None, ...]:
    """Sizes searched, ascending, the whole vocabulary (None) last: doublings from 1024, or from V /
    64 for a vocabulary under 16 Ki. Only None when no ranking of the ids exists.
    """
    size = facts.vocab_size
    low = WHOLE_VOCAB_FLOOR if size >= SMALL_VOCAB else max(8, size // 64)
    sizes: list[int | None] = []
    while low < size and low <= facts.num_ranked:
        sizes.append(low)
        low *= 2
    return (*sizes, None)


def suggest(trial: Trial, family: str, facts: SpaceFacts) -> SpecConfig:
    """One configuration of ``family``, every choice but the fixed ones taken by ``trial``;
    normalised.
    """
    trial = _Held(trial, facts.fixed)
    values: dict[str, Any] = {"drafter": family}
    if family == "ngram":
        values["block_size"] = trial.suggest_int("ngram.block_size", 1, 16)
        values["match_max"] = trial.suggest_int("ngram.match_max", 1, 8)
        values["match_min"] = min(trial.suggest_int("ngram.match_min", 1, 4), values["match_max"])
    elif family == "suffix":
        depth = trial.suggest_int("suffix.match_max", 4, 64, log=True)
        values["match_max"] = depth
        values["match_min"] = min(trial.suggest_int("suffix.match_min", 1, 8), depth - 1)
        values["spec_factor"] = _on_grid(
            trial.suggest_float("suffix.spec_factor", 0.5, 4.0, step=0.25)
        )
        values["min_token_prob"] = _on_grid(
            trial.suggest_float("suffix.min_token_prob", 0.0, 0.5, step=0.05)
        )
    elif family == "recycle":
        values["recycle_k"] = trial.suggest_int("recycle.recycle_k", 2, 16)
    elif family == "early_exit":
        values.update(_layers(trial, facts))
    elif family == "draft_model":
        values["draft_model"] = facts.draft_model
    if family in MATCHERS:
        values["fallback_size"] = trial.suggest_int(f"{family}.fallback_size", 0, 4)
    if family in ("early_exit", "draft_model"):
        grid = draft_vocab_grid(facts)
        if "draft_vocab" in facts.fixed:
            values["draft_vocab"] = facts.fixed["draft_vocab"]
        elif len(grid) > 1:
            step = trial.suggest_int(f"{family}.draft_vocab_step", 0, len(grid) - 1)
            values["draft_vocab"] = grid[step]
        values["stop_threshold"] = _on_grid(
            trial.suggest_float(f"{family}.stop_threshold", 0.0, 0.9, step=0.05)
        )
    if family in TREES_OF:
        values.update(_tree(trial, family, facts))
    values["draft_budget"] = trial.suggest_categorical(f"{family}.draft_budget", ("fixed", "gain"))
    return normalise(SpecConfig(**values), facts)


def parameters_of(config: SpecConfig, facts: SpaceFacts) -> dict[str, Any]:
    """The parameters whose ``suggest`` gives ``config``, or NotExpressibleError."""
    point = FixedPoint(config, facts)
    if suggest(point, config.drafter, facts) != normalise(config, facts):
        raise NotExpressibleError(f"{config} is outside the searched space")
    return point.parameters


def expressible(config: SpecConfig, facts: SpaceFacts) -> bool:
    """Whether ``config`` lies in the searched space."""
    try:
        parameters_of(config, facts)
    except NotExpressibleError:
        return False
    return True


class _Held:
    """A Trial in which ``fixed`` knobs are not asked for."""

    def __init__(self, trial: Trial, fixed: Mapping[str, Any]) -> None:
        self._trial = trial
        self._fixed = fixed

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> int:
        if self._holds(name):
            return int(self._fixed[_knob(name)])
        return self._trial.suggest_int(name, low, high, step=step, log=log)

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        if self._holds(name):
            return float(self._fixed[_knob(name)])
        return self._trial.suggest_float(name, low, high, step=step, log=log)

    def suggest_categorical(self, name: str, choices: Sequence[str]) -> Any:
        if self._holds(name):
            return self._fixed[_knob(name)]
        return self._trial.suggest_categorical(name, choices)

    def _holds(self, name: str) -> bool:
        return _knob(name) in self._fixed


class FixedPoint:
    """A Trial that answers from one configuration, and keeps what it answered."""

    def __init__(self, config: SpecConfig, facts: SpaceFacts) -> None:
        self.parameters: dict[str, Any] = {}
        self._values = {name: getattr(config, name) for name in KNOBS}
        self._values |= _layer_parameters(config)
        grid = draft_vocab_grid(facts)
        if config.draft_vocab in grid:
            self._values["draft_vocab_step"] = grid.index(config.draft_vocab)

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> int:
        del step, log
        value = self._value(name)
        if not isinstance(value, int) or not low <= value <= high:
            raise NotExpressibleError(f"{name} {value!r} is outside {low}..{high}")
        self.parameters[name] = value
        return value

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        del log
        value = float(self._value(name))
        steps = (value - low) / (step or 1.0)
        if not low <= value <= high or (step and not math.isclose(steps, round(steps))):
            raise NotExpressibleError(f"{name} {value!r} is not on the grid {low}..{high}")
        self.parameters[name] = value
        return value

    def suggest_categorical(self, name: str, choices: Sequence[str]) -> Any:
        value = self._value(name)
        if value not in choices:
            raise NotExpressibleError(f"{name} {value!r} is not one of {choices}")
        self.parameters[name] = value
        return value

    def _value(self, name: str) -> Any:
        key = _knob(name)
        if key not in self._values:
            raise NotExpressibleError(f"{name} has no value")
        return self._values[key]


def _knob(name: str) -> str:
    """The part of a parameter's name after the family."""
    return name.split(".", 1)[1]


def _tree(trial: Trial, family: str, facts: SpaceFacts) -> dict[str, Any]:
    tree = trial.suggest_categorical(f"{family}.tree", TREES_OF[family])
    block = KNOBS["block_size"]
    longest = int(high_limit(block, family, facts))
    values: dict[str, Any] = {
        "tree": tree,
        "block_size": trial.suggest_int(f"{family}.block_size", 1, longest, log=longest > 16),
    }
    if tree != "chain":
        most = max(8, MAX_SEARCHED_NODES // facts.concurrency)
        values["tree_budget"] = trial.suggest_int(f"{family}.tree_budget", 2, most, log=True)
    if tree == "dynamic":
        values["tree_top_k"] = trial.suggest_int(f"{family}.tree_top_k", 2, 8)
    return values


def _layers(trial: Trial, facts: SpaceFacts) -> dict[str, Any]:
    """A cut after ``exit_layer``, or a contiguous run of left-out layers between first and last."""
    if facts.fixed.get("skip_layers"):
        return {"skip_layers": facts.fixed["skip_layers"]}
    last = facts.num_layers - 1
    way = "exit"
    held = facts.fixed.keys() & {"exit_layer", "skip_layers"}
    if facts.num_layers >= MIN_LAYERS_TO_SKIP and not held:
        way = trial.suggest_categorical("early_exit.way", ("exit", "skip"))
    if way == "exit":
        return {"exit_layer": trial.suggest_int("early_exit.exit_layer", 1, last)}
    count = trial.suggest_int("early_exit.skip_count", 1, last - 1)
    start = min(trial.suggest_int("early_exit.skip_start", 1, last - 1), last - count)
    return {"skip_layers": tuple(range(start, start + count))}


def _layer_parameters(config: SpecConfig) -> dict[str, Any]:
    if not config.skip_layers:
        return {"way": "exit"}
    return {
        "way": "skip",
        "skip_start": config.skip_layers[0],
        "skip_count": len(config.skip_layers),
    }


def _on_grid(value: float) -> float:
    return round(value, 10)
