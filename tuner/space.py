"""Configurations as points of the space: validated, normalised, compared, shown.

``normalise`` puts every knob that is not read back to its default, so that equal configurations
hash equal.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from draftsmith.engine.drafters.registry import MATCHERS
from draftsmith.engine.types import SpecConfig
from draftsmith.tuner.errors import TunerInputError, near_match
from draftsmith.tuner.knobs import (
    DRAFTERS,
    FIXABLE,
    KNOBS,
    OPEN,
    TREES,
    TREES_OF,
    Knob,
    SpaceFacts,
    high_limit,
    is_read,
)
from draftsmith.tuner.strict_json import is_number, shown

_ORDER = {"chain": 1, "static": 2, "dynamic": 3}


def normalise(config: SpecConfig, facts: SpaceFacts | None = None) -> SpecConfig:
    """``config`` with every knob that is not read at its default. With ``facts``, a draft
    vocabulary as large as the model's is None and the verifier at T = 0 is the default.
    """
    resets = {
        name: knob.default
        for name, knob in KNOBS.items()
        if name != "drafter" and not is_read(knob, config)
    }
    config = replace(config, **resets)
    if config.skip_layers:
        config = replace(config, skip_layers=tuple(sorted(config.skip_layers)))
    if facts is None:
        return config
    if config.draft_vocab is not None and config.draft_vocab >= facts.vocab_size:
        config = replace(config, draft_vocab=None)
    if facts.temperature == 0:
        config = replace(config, verifier="coupled")
    return config


def simplicity(config: SpecConfig) -> tuple[int, int, int]:
    """Order of simplicity, simplest first: off, chain, static, dynamic; then fewer nodes,
    then less recycling behind matches.
    """
    if config.drafter == "none":
        return (0, 0, 0)
    tree = config.tree if config.drafter in TREES_OF else "chain"
    fallback = config.fallback_size if config.drafter in MATCHERS else 0
    if tree == "chain":
        return (1, config.block_size, fallback)
    return (_ORDER[tree], config.tree_budget, fallback)


def config_json(config: SpecConfig) -> dict[str, Any]:
    """The configuration as plain JSON: the drafter and every knob that it reads."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(config)))
    return {name: plain[name] for name, knob in KNOBS.items() if is_read(knob, config)}


def config_text(config: SpecConfig) -> str:
    """One line for tables: the drafter, its block size, and what differs from the defaults."""
    if config.drafter == "none":
        return "off"
    parts = [config.drafter]
    for name, value in config_json(config).items():
        if name == "draft_model":
            continue
        default = json.loads(json.dumps(KNOBS[name].default))
        if name == "block_size" or (name != "drafter" and value != default):
            parts.append(f"{name}={_short(value)}")
    return " ".join(parts)


def validate(values: Mapping[str, Any], facts: SpaceFacts | None = None) -> SpecConfig:
    """The normalised configuration of a user's JSON; a null was not given, drafter ``off`` is none.
    TunerInputError names an unknown knob with its near match, a value outside its limits, knobs
    that contradict each other, and a value that nothing would read (a default is let pass).
    """
    for name in values:
        if name not in OPEN:
            raise TunerInputError(f"unknown knob {name!r}.{near_match(str(name), OPEN)}")
    given = {name: value for name, value in values.items() if value is not None}
    if given and "drafter" not in given:
        raise TunerInputError(
            f"{next(iter(given))} is given without a drafter: name one of "
            f"{', '.join(OPEN['drafter'].choices)}"
        )
    if given.get("drafter") == "off":
        given["drafter"] = "none"
    drafter = given.get("drafter", "none")
    checked = {name: _checked(OPEN[name], value, drafter, facts) for name, value in given.items()}
    config = SpecConfig(**checked)
    _check_together(config)
    for name, value in checked.items():
        if value != OPEN[name].default and not is_read(OPEN[name], config):
            raise TunerInputError(f"{name} is {shown(given[name])} but {_why_unread(name, config)}")
    return normalise(config, facts)


def check_fixed(fixed: Mapping[str, Any], facts: SpaceFacts) -> dict[str, Any]:
    """Knobs to hold, with their values checked for every searched family that reads them.
    TunerInputError names a knob that cannot be held, a value outside its limits, and a tree that a
    family does not draw.
    """
    checked: dict[str, Any] = {}
    for name, value in fixed.items():
        if name not in FIXABLE:
            raise TunerInputError(f"knob {name!r} cannot be fixed.{near_match(name, FIXABLE)}")
        readers = [family for family in facts.searched if family in KNOBS[name].drafters]
        if not readers:
            raise TunerInputError(
                f"fixed.{name} is {shown(value)} but none of the searched drafters "
                f"({', '.join(facts.searched)}) reads it: drop it"
            )
        for family in readers:
            checked[name] = _checked(KNOBS[name], value, family, facts)
            if name == "tree" and value not in TREES_OF[family]:
                raise TunerInputError(
                    f"fixed.tree is {shown(value)} but drafter {family!r} draws "
                    f"{' or '.join(TREES_OF[family])} only: leave {family} out of drafters"
                )
    if checked.get("exit_layer") and checked.get("skip_layers"):
        raise TunerInputError("fixed.exit_layer and fixed.skip_layers exclude each other: drop one")
    return checked


def knob_table(facts: SpaceFacts | None = None) -> list[dict[str, str]]:
    """Rows for docs and CLI help: name, values, default, unit, applies to, help."""
    rows = []
    for knob in OPEN.values():
        applies = ", ".join(knob.readers) if knob.drafters != DRAFTERS else "all"
        if knob.trees != TREES:
            applies += f" with tree {' or '.join(knob.trees)}"
        if knob.unless:
            applies += f", unless {knob.unless} is set"
        default = knob.default
        rows.append(
            {
                "name": knob.name,
                "values": _range_text(knob, facts),
                "default": "unset" if default in (None, ()) else str(default),
                "unit": knob.unit,
                "applies to": applies,
                "help": knob.help,
            }
        )
    return rows


def _checked(knob: Knob, value: Any, drafter: str, facts: SpaceFacts | None) -> Any:
    if knob.kind == "choice":
        if not isinstance(value, str) or value not in knob.choices:
            raise TunerInputError(
                f"{knob.name} is {shown(value)}.{near_match(str(value), knob.choices)}"
            )
        return value
    if knob.kind == "text":
        if not isinstance(value, str) or not value:
            raise TunerInputError(f"{knob.name} is {shown(value)}: it must be a non-empty text")
        return value
    high = high_limit(knob, drafter, facts)
    if knob.kind == "ints":
        if not isinstance(value, list | tuple):
            raise TunerInputError(
                f"{knob.name} is {shown(value)}: it must be a list of whole numbers"
            )
        return tuple(_number(knob, item, high) for item in value)
    return _number(knob, value, high)


def _number(knob: Knob, value: Any, high: float) -> int | float:
    whole = knob.kind != "float"
    limits = f"from {knob.low:g} to {high:g}" if math.isfinite(high) else f"at least {knob.low:g}"
    wanted = f"{'a whole number' if whole else 'a number'} {limits}"
    given = type(value) is int if whole else is_number(value)
    if not given or value < knob.low or value > high:
        raise TunerInputError(f"{knob.name} is {shown(value)}: it must be {wanted}")
    return value if whole else float(value)


def _why_unread(name: str, config: SpecConfig) -> str:
    knob = OPEN[name]
    if config.drafter not in knob.drafters:
        readers = ", ".join(knob.readers)
        return f"drafter {config.drafter!r} does not read it, only {readers}: drop it"
    if config.tree not in knob.trees:
        return f"tree {config.tree!r} does not read it, only {' or '.join(knob.trees)}: drop it"
    return f"{knob.unless} is set, which takes its place: drop one of the two"


def _check_together(config: SpecConfig) -> None:
    drafter = config.drafter
    shapes = TREES_OF.get(drafter, ("chain",))
    if config.tree not in shapes:
        raise TunerInputError(
            f"tree is {config.tree!r} but drafter {drafter!r} draws {' or '.join(shapes)} only"
        )
    if config.tree != "chain" and config.verifier != "coupled":
        raise TunerInputError(
            f"verifier {config.verifier!r} needs a chain but tree is {config.tree!r}: "
            "use tree 'chain' or verifier 'coupled'"
        )
    room = 1 if drafter == "suffix" else 0  # a suffix and its draft share the depth
    if drafter in ("ngram", "suffix") and config.match_min + room > config.match_max:
        raise TunerInputError(
            f"match_min {config.match_min} leaves no room under match_max {config.match_max}: "
            "lower the first or raise the second"
        )
    if drafter == "early_exit" and config.exit_layer is None and not config.skip_layers:
        raise TunerInputError("drafter 'early_exit' needs exit_layer or skip_layers")
    if drafter == "draft_model" and config.draft_model is None:
        raise TunerInputError("drafter 'draft_model' needs draft_model: the drafter's folder")
    if len(set(config.skip_layers)) != len(config.skip_layers):
        raise TunerInputError(f"skip_layers {list(config.skip_layers)} names a layer twice")


def _range_text(knob: Knob, facts: SpaceFacts | None) -> str:
    if facts is not None and knob.name in facts.fixed:
        value = json.dumps(facts.fixed[knob.name]).strip('"')
        return f"{value} (fixed)"
    if knob.kind == "choice":
        return ", ".join(knob.choices)
    if knob.kind == "text":
        return "path"
    high = high_limit(knob, "", facts)
    text = f"{knob.low:g}..{knob.high_text if math.isinf(high) and knob.high_text else f'{high:g}'}"
    for drafter, limit in (knob.high_for or {}).items():
        text += f" ({limit:g} for {drafter})"
    return f"list of {text}" if knob.kind == "ints" else text


def _short(value: Any) -> str:
    if isinstance(value, list):
        return ",".join(str(item) for item in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
