"""Deployments from YAML and flags: what is read, what is refused and how it is said."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from draftsmith.tuner.deployment import Deployment, Effort
from draftsmith.tuner.deployment_file import load_deployment
from draftsmith.tuner.duration import format_duration, parse_budget
from draftsmith.tuner.errors import BudgetError, TunerInputError

BASE = {"target": "model", "workload": "prompts.jsonl"}


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("10m", 600),
        ("90s", 90),
        ("1h30m", 5400),
        ("1.5m", 90),
        ("600", 600),
        (45, 45),
        ("1H", 3600),
    ],
)
def test_budgets_are_durations(text: str | int, seconds: float) -> None:
    assert parse_budget(text) == seconds


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0", "more than 0"),
        ("-5m", "more than 0"),
        ("abc", "not a duration"),
        ("", "not a duration"),
        ("10 minutes", "not a duration"),
        ("nan", "not a duration"),
        ("inf", "not a duration"),
        (float("inf"), "not a duration"),
        ("99999999999999999999h", "at most 720h"),
        (30 * 24 * 3600 + 1, "at most 720h"),
        ("5s", "less than 10 s"),
        (True, "not a duration"),
    ],
)
def test_a_budget_that_is_none_is_named(text: str | float, why: str) -> None:
    with pytest.raises(BudgetError, match=why) as caught:
        parse_budget(text)
    assert repr(text) in str(caught.value)


def test_a_budget_of_any_size_is_refused_in_words() -> None:
    for text in (10**400, "9" * 400 + "h"):
        with pytest.raises(BudgetError, match="at most 720h"):
            parse_budget(text)


def test_durations_read_back() -> None:
    for seconds in (45, 90, 600, 5400):
        assert parse_budget(format_duration(seconds)) == seconds


def test_yaml_and_flags_merge_and_flags_win(tmp_path: Path) -> None:
    file = tmp_path / "deployment.yaml"
    file.write_text(
        "target: {path: model, dtype: float32}\n"
        "workload: {path: prompts.jsonl, heldout_fraction: 0.4}\n"
        "regime: {temperature: 0.8, seed: 3, stop_strings: [END]}\n"
        "drafters: [ngram, suffix]\nbudget: 10m\n"
    )
    made = load_deployment(file, {"regime.temperature": 0.2, "budget": None, "max_trials": 5})
    assert made.target.dtype == "float32"
    assert made.regime.sampling.temperature == 0.2
    assert made.regime.sampling.seed == 3
    assert made.regime.sampling.stop_strings == ("END",)
    assert made.workload.heldout_fraction == 0.4
    assert made.drafters == ("ngram", "suffix")
    assert made.effort == Effort(budget_s=600.0, max_trials=5)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"wrkload": 1}, "unknown key 'wrkload'. Did you mean 'workload'?"),
        ({"regime.temprature": 1}, "Did you mean 'regime.temperature'?"),
        (
            {"regime": {"temprature": 1}},
            "unknown key regime.temprature. Did you mean 'temperature'?",
        ),
        ({"regime": 3}, "must map keys to values"),
        ({"regime.top_p": 0}, "regime.top_p is 0: it must be more than 0 and at most 1"),
        ({"regime.concurrency": 0}, "at least 1"),
        ({"regime.concurrency": 2.5}, "whole number"),
        ({"regime.max_tokens": "many"}, "whole number"),
        ({"target.dtype": "int8"}, "target.dtype is 'int8'"),
        ({"drafters": ["ngrm"]}, "Did you mean 'ngram'?"),
        ({"drafters": []}, "drafters is empty"),
        ({"drafters": ["draft_model"]}, "needs a model"),
        ({"drafters": ["ngram"], "draft_model": "small"}, "leave it out"),
        ({"regime.min_tokens": 300}, "more than regime.max_tokens"),
        ({"seed": -1}, "at least 0"),
        ({"regime.seed": 10**400}, "a whole number of about 401 digits"),
        ({"regime.temperature": 10**400}, "a whole number of about 401 digits"),
        ({"target.cache_capacity": 10**400}, "at most 2147483647"),
        ({"objective.max_memory_gb": 10**400}, "must be a number, more than 0"),
        ({"workload.limit": 1}, "at least 2"),
        ({"regime.temperature": 101}, "at most 100"),
        ({"regime.seed": 2**63}, "at most 9223372036854775807"),
        ({"seed": float("nan")}, "whole number"),
        ({"workload": {"path": "x", "heldout_fraction": 1}}, "at most 0.9"),
    ],
)
def test_wrong_values_are_named_with_limit_and_fix(flags: dict[str, object], message: str) -> None:
    with pytest.raises(TunerInputError) as caught:
        load_deployment(None, {**BASE, **flags})
    assert message in str(caught.value)


def test_what_is_needed_is_asked_for() -> None:
    with pytest.raises(TunerInputError, match="target.path is missing"):
        load_deployment(None, {"workload": "x"})
    with pytest.raises(TunerInputError, match="workload.path is missing"):
        load_deployment(None, {"target": "x"})


@pytest.mark.parametrize(
    ("text", "message"),
    [("- a\n- b\n", "holds a list"), ("a: [1\n", "is not YAML"), ("", "holds a NoneType")],
)
def test_a_broken_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text(text)
    with pytest.raises(TunerInputError, match=message):
        load_deployment(file)
    with pytest.raises(TunerInputError, match="cannot be read"):
        load_deployment(tmp_path / "missing.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("target: x\nworkload: y\nbudget: 2026-01-01\n", "is not a duration"),
        ("target: " + "[" * 3000, "nested too deeply"),
        ("target: x\nworkload: y\nbudget: 1h\nbudget: 1m\n", "'budget' stands there twice"),
        ("target: x\nworkload: y\nseed: " + "9" * 5000, "is no number that anything takes"),
        ("target: x\nworkload: y\nseed: 0x" + "f" * 5000, "a whole number of about 6021 digits"),
        ("target: x\nworkload: y\nbudget: 2026-13-01\n", "is not YAML: month"),
    ],
    ids=["date", "deep", "twice", "digits", "hex", "no date"],
)
def test_yaml_that_only_looks_like_a_deployment(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "deployment.yaml"
    file.write_text(text)
    with pytest.raises(TunerInputError, match=message):
        load_deployment(file, {})


def test_a_section_that_was_left_empty_was_not_given(tmp_path: Path) -> None:
    file = tmp_path / "deployment.yaml"
    file.write_text("target: x\nworkload: y\nregime:\nfixed:\nobjective:\ndrafters:\n")
    assert load_deployment(file) == load_deployment(None, {"target": "x", "workload": "y"})


def test_the_fingerprint_follows_content_and_not_effort(tmp_path: Path) -> None:
    made = deployment_in(tmp_path / "a")
    assert made.fingerprint() == deployment_in(tmp_path / "b").fingerprint()
    assert replace(made, effort=Effort(budget_s=9999.0)).fingerprint() == made.fingerprint()
    assert replace(made, drafters=("ngram",)).fingerprint() != made.fingerprint()
    before = made.fingerprint()
    Path(made.workload.path).write_text('{"prompt": "three"}\n')
    assert made.fingerprint() != before


def test_the_fingerprint_follows_the_weights(tmp_path: Path) -> None:
    made = deployment_in(tmp_path)
    before = made.fingerprint()
    (Path(made.target.path) / "model.safetensors").write_bytes(b"other")
    assert made.fingerprint() != before


def test_the_form_of_the_weights_counts_where_it_is_asked_for(tmp_path: Path) -> None:
    """A deployment that leaves it to us is the one that it was before the choice was there."""
    made = deployment_in(tmp_path)
    assert "weights" not in made.description()["target"]
    flags = {"target": made.target.path, "workload": made.workload.path, "target.weights": "plain"}
    plain = load_deployment(None, flags)
    assert plain.target.weights == "plain" and plain.fingerprint() != made.fingerprint()
    with pytest.raises(TunerInputError, match="fp4.*auto, bf12, plain"):
        load_deployment(None, {**flags, "target.weights": "fp4"})


def deployment_in(folder: Path) -> Deployment:
    model = folder / "model"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / "model.safetensors").write_bytes(b"weights")
    workload = folder / "prompts.jsonl"
    workload.write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
    return load_deployment(None, {"target": str(model), "workload": str(workload)})
