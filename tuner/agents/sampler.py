"""Optuna's TPE behind the agent protocol, by ask and tell.

Our store is the truth; the study follows it, in the same database, so that optuna-dashboard shows
the search and TPE survives a restart. Every proposal is one Optuna trial: told with the speed-up of
its first measurement, or pruned without a value when it failed or is infeasible, which TPE ranks
last.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import optuna
from optuna.trial import TrialState

from draftsmith.engine.types import SpecConfig
from draftsmith.store.canonical import canonical_json
from draftsmith.tuner.agents.agent import Lesson, Proposal, View
from draftsmith.tuner.knobs import SpaceFacts
from draftsmith.tuner.parameters import NotExpressibleError, parameters_of, suggest
from draftsmith.tuner.space import config_json

MAX_REPEATS = 50  # samples in a row that are known already: the space is taken as exhausted
STARTUP_TRIALS = 8  # random samples before TPE models anything; starting points count
_CONFIG = "config"


class SamplerAgent:
    """``starts`` are enqueued once, in order, whatever the number of restarts. ``attached`` are the
    Optuna numbers that belong to stored trials; other running ones lost their driver and are
    failed. The random stream depends on how many trials the study holds, so that a resumed search
    does not repeat itself.
    """

    def __init__(
        self,
        facts: SpaceFacts,
        *,
        study_name: str,
        seed: int,
        storage: optuna.storages.BaseStorage | None = None,
        starts: Sequence[Proposal] = (),
        attached: Iterable[int] = (),
    ) -> None:
        self._facts = facts
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._study = optuna.create_study(
            storage=storage, study_name=study_name, direction="maximize", load_if_exists=True
        )
        self._study.sampler = _tpe(seed, len(self._study.trials))
        self._drop_orphans(frozenset(attached))
        self._starts = {_key(start.config): start for start in starts}
        for start in starts:
            self._enqueue(start.config)

    def propose(self, view: View, count: int) -> list[Proposal]:
        known = {_key(config) for config in view.known}
        proposals: list[Proposal] = []
        repeats = 0
        while len(proposals) < count and repeats < MAX_REPEATS and self._facts.searched:
            trial = self._study.ask()
            family = trial.suggest_categorical("drafter", self._facts.searched)
            config = suggest(trial, family, self._facts)
            key = _key(config)
            if key in known:
                repeats += 1
                self._study.tell(trial.number, state=TrialState.FAIL)
                continue
            known.add(key)
            trial.set_user_attr(_CONFIG, key)
            proposals.append(self._proposal(config, trial.number))
        return proposals

    def learn(self, lesson: Lesson) -> None:
        number = lesson.optuna_number
        if number is not None and self._is_own(number, lesson.config):
            if lesson.ratio is None:
                self._study.tell(number, state=TrialState.PRUNED, skip_if_finished=True)
            else:
                self._study.tell(number, lesson.ratio, skip_if_finished=True)
            return
        self._add_foreign(lesson)

    def _proposal(self, config: SpecConfig, number: int) -> Proposal:
        start = self._starts.get(_key(config))
        if start is not None:
            return Proposal(
                config=config, proposer=start.proposer, why=start.why, optuna_number=number
            )
        why = "sampled by TPE from what was measured so far"
        return Proposal(config=config, proposer="sampler", why=why, optuna_number=number)

    def _is_own(self, number: int, config: SpecConfig) -> bool:
        """The study's trial of this number is about ``config`` (a study in memory is lost on a
        restart).
        """
        trials = self._study.get_trials(deepcopy=False)
        return number < len(trials) and trials[number].user_attrs.get(_CONFIG) == _key(config)

    def _enqueue(self, config: SpecConfig) -> None:
        """Starting points outside the searched ranges are left out."""
        try:
            parameters = parameters_of(config, self._facts)
        except NotExpressibleError:
            return
        parameters = {"drafter": config.drafter, **parameters}
        self._study.enqueue_trial(parameters, skip_if_exists=True)

    def _add_foreign(self, lesson: Lesson) -> None:
        """A configuration that somebody else proposed (the incumbent) is evidence too."""
        key = _key(lesson.config)
        if any(trial.user_attrs.get(_CONFIG) == key for trial in self._study.trials):
            return
        recorder = _Recorder(lesson.config, self._facts)
        try:
            parameters, distributions = recorder.record()
        except NotExpressibleError:
            return
        pruned = lesson.ratio is None
        self._study.add_trial(
            optuna.trial.create_trial(
                state=TrialState.PRUNED if pruned else TrialState.COMPLETE,
                value=lesson.ratio,
                params=parameters,
                distributions=distributions,
                user_attrs={_CONFIG: key},
            )
        )

    def _drop_orphans(self, attached: frozenset[int]) -> None:
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if trial.number not in attached:
                self._study.tell(trial.number, state=TrialState.FAIL)


class _Recorder:
    """Parameters of one configuration with the distributions they come from, through a scratch
    study.
    """

    def __init__(self, config: SpecConfig, facts: SpaceFacts) -> None:
        self._config = config
        self._facts = facts

    def record(self) -> tuple[dict[str, Any], dict[str, Any]]:
        config, facts = self._config, self._facts
        if config.drafter not in facts.searched:
            raise NotExpressibleError(f"{config.drafter} is not searched")
        scratch = optuna.create_study()
        scratch.enqueue_trial({"drafter": config.drafter, **parameters_of(config, facts)})
        trial = scratch.ask()
        suggest(trial, trial.suggest_categorical("drafter", facts.searched), facts)
        return trial.params, trial.distributions


def open_storage(url: str, engine_kwargs: dict[str, Any]) -> optuna.storages.RDBStorage:
    """Optuna's own tables in the store's database."""
    return optuna.storages.RDBStorage(url, engine_kwargs=engine_kwargs)


def _tpe(seed: int, num_trials: int) -> optuna.samplers.TPESampler:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.TPESampler(
            seed=(seed * 1_000_003 + num_trials) % 2**32,
            n_startup_trials=STARTUP_TRIALS,
            multivariate=True,
            group=True,
            constant_liar=True,
        )


def _key(config: SpecConfig) -> str:
    return canonical_json(config_json(config))
