"""A YAML document and the command line's flags become one ``Deployment``.

Layout of the document (every key but ``target`` and ``workload`` is optional)::

    target: {path: DIR, dtype: bfloat16, device: cpu, num_threads: 2}     # or just the path
    drafters: [ngram, suffix, recycle, early_exit, draft_model]
    draft_model: DIR
    regime: {concurrency: 1, max_tokens: 128, temperature: 0, top_p: 1, seed: 0}
    workload: {path: FILE, limit: 40, heldout_fraction: 0.3}              # or just the path
    objective: {metric: throughput, max_memory_gb: 40}
    fixed: {tree: chain, stop_threshold: 0}        # knobs held at a value, not searched
    budget: 10m
    max_trials: 40
    finalists: 1
    seed: 0

Flags use the same names, nested ones with a dot: ``{"regime.temperature": 0.8, "budget": "10m"}``.
A flag beats the document; a flag of None was not given. ``KEYS`` is the whole list, as data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from draftsmith.engine.job import TargetRef, WeightForm
from draftsmith.engine.types import Sampling
from draftsmith.tuner.deployment import (
    FAMILIES,
    Deployment,
    Effort,
    Objective,
    Regime,
    WorkloadSpec,
)
from draftsmith.tuner.duration import parse_budget
from draftsmith.tuner.errors import TunerInputError, near_match
from draftsmith.tuner.knobs import FIXABLE, KNOBS, Knob
from draftsmith.tuner.strict_json import is_number, shown

Kind = Literal["int", "float", "str", "bool", "ints", "strs", "duration"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key of the document: what it may hold and what it is for. ``low`` and ``high`` are
    allowed values themselves unless ``above`` (then ``low`` is not).
    """

    kind: Kind
    help: str
    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    choices: tuple[str, ...] = ()


def _fixed_key(knob: Knob) -> Key:
    kind: Any = "str" if knob.kind == "choice" else knob.kind
    return Key(kind=kind, low=knob.low, choices=knob.choices, help=f"hold at: {knob.help}")


_SEED_MAX = 2**63 - 1
_MANY = 2**31 - 1  # more than there is of anything that is counted

KEYS: dict[str, Key] = {
    "target.path": Key(kind="str", help="checkpoint folder, GGUF file or embedded model's name"),
    "target.dtype": Key(
        kind="str", choices=("bfloat16", "float32", "float16"), help="numbers the target runs in"
    ),
    "target.device": Key(kind="str", help="cpu, cuda or cuda:N"),
    "target.weights": Key(
        kind="str",
        choices=get_args(WeightForm),
        help="form of bf16 weights in memory; bf12: 12 bits, same bits out",
    ),
    "target.num_threads": Key(kind="int", low=1, high=1024, help="CPU threads of one worker"),
    "target.cache_capacity": Key(
        kind="int", low=16, high=_MANY, help="cache rows a request may use"
    ),
    "drafters": Key(kind="strs", choices=FAMILIES, help="drafter families to search"),
    "draft_model": Key(kind="str", help="folder of a small model with the same vocabulary"),
    "regime.concurrency": Key(kind="int", low=1, high=256, help="requests running together"),
    "regime.max_tokens": Key(kind="int", low=1, high=1_000_000, help="output tokens a request"),
    "regime.min_tokens": Key(kind="int", low=0, high=1_000_000, help="no stop before this many"),
    "regime.temperature": Key(kind="float", low=0, high=100, help="0 is greedy"),
    "regime.top_k": Key(kind="int", low=0, high=_MANY, help="0 is off"),
    "regime.top_p": Key(kind="float", low=0, high=1, above=True, help="1 is off"),
    "regime.min_p": Key(kind="float", low=0, high=1, help="0 is off"),
    "regime.repetition_penalty": Key(kind="float", low=0, high=10, above=True, help="1 is off"),
    "regime.presence_penalty": Key(kind="float", low=-2, high=2, help="0 is off"),
    "regime.frequency_penalty": Key(kind="float", low=-2, high=2, help="0 is off"),
    "regime.stop_token_ids": Key(
        kind="ints", low=0, high=_MANY, help="token ids that end a request"
    ),
    "regime.stop_strings": Key(kind="strs", help="strings that end a request"),
    "regime.ignore_eos": Key(kind="bool", help="go on after the model's end token"),
    "regime.seed": Key(kind="int", low=0, high=_SEED_MAX, help="seed of sampling at T > 0"),
    "workload.path": Key(kind="str", help="JSONL, ShareGPT or OpenAI batch file of prompts"),
    "workload.limit": Key(
        kind="int", low=2, high=_MANY, help="rows to read at most, spread over categories"
    ),
    "workload.heldout_fraction": Key(
        kind="float", low=0.05, high=0.9, help="share of the rows kept for the confirmation"
    ),
    "workload.max_prompt_tokens": Key(
        kind="int", low=8, high=_MANY, help="longer prompts are left out"
    ),
    "workload.skip_bad_rows": Key(kind="bool", help="leave out rows that cannot be read"),
    "objective.metric": Key(kind="str", choices=("throughput",), help="what is maximised"),
    "objective.max_memory_gb": Key(
        kind="float", low=0, above=True, help="peak memory a configuration may use"
    ),
    **{f"fixed.{name}": _fixed_key(KNOBS[name]) for name in FIXABLE},
    "budget": Key(kind="duration", help="wall-clock time of the whole run, such as 10m or 1h30m"),
    "max_trials": Key(kind="int", low=1, high=1_000_000, help="configurations to measure at most"),
    "finalists": Key(kind="int", low=1, high=2, help="finalists to confirm at most, by Holm"),
    "seed": Key(kind="int", low=0, high=_MANY, help="seed of the search"),
}

_SECTIONS = frozenset(name.split(".")[0] for name in KEYS if "." in name)
_SHORT = {"target": "target.path", "workload": "workload.path"}


def load_deployment(
    document: str | Path | Mapping[str, Any] | None, flags: Mapping[str, Any] | None = None
) -> Deployment:
    """The deployment of a YAML file (or its parsed content) with flags on top. TunerInputError
    names every unknown key with its near match, and every value outside its limits.
    """
    values = _flat(_read(document) if isinstance(document, str | Path) else document or {})
    values.update(_flat({k: v for k, v in (flags or {}).items() if v is not None}))
    checked = {name: check_value(name, KEYS[name], value) for name, value in values.items()}
    for needed, flag in (("target.path", "--target DIR"), ("workload.path", "--workload FILE")):
        if needed not in checked:
            raise TunerInputError(f"{needed} is missing: give {flag}, or the key in the file")
    drafters = _drafters(checked)

    def section(name: str) -> dict[str, Any]:
        return {k.split(".")[1]: v for k, v in checked.items() if k.startswith(name + ".")}

    regime = section("regime")
    concurrency = regime.pop("concurrency", 1)
    sampling = Sampling(**regime)
    if sampling.min_tokens > sampling.max_tokens:
        raise TunerInputError(
            f"regime.min_tokens {sampling.min_tokens} is more than regime.max_tokens "
            f"{sampling.max_tokens}: lower the first or raise the second"
        )
    effort: dict[str, Any] = {
        k: checked[k] for k in ("max_trials", "finalists", "seed") if k in checked
    }
    if "budget" in checked:
        effort["budget_s"] = checked["budget"]
    return Deployment(
        target=TargetRef(**section("target")),
        drafters=drafters,
        draft_model=checked.get("draft_model"),
        regime=Regime(concurrency=concurrency, sampling=sampling),
        workload=WorkloadSpec(**section("workload")),
        objective=Objective(**section("objective")),
        fixed=section("fixed"),
        effort=Effort(**effort),
    )


def check_value(name: str, key: Key, value: Any) -> Any:
    """``value`` as the key's type and within its limits, else TunerInputError naming them."""
    if key.kind == "duration":
        return parse_budget(value)
    if key.kind in ("ints", "strs"):
        items = value if isinstance(value, list | tuple) else [value]
        one = replace(key, kind=key.kind[:-1])  # type: ignore[arg-type]
        return tuple(dict.fromkeys(check_value(name, one, item) for item in items))
    if key.kind == "str":
        if not isinstance(value, str | Path) or not str(value):
            raise TunerInputError(f"{name} is {shown(value)}: it must be a non-empty text")
        if key.choices and value not in key.choices:
            raise TunerInputError(f"{name} is {shown(value)}.{near_match(str(value), key.choices)}")
        return str(value)
    if key.kind == "bool":
        if not isinstance(value, bool):
            raise TunerInputError(f"{name} is {shown(value)}: it must be true or false")
        return value
    whole = key.kind == "int"
    if whole:
        given = type(value) is int or (is_number(value) and int(value) == value)
    else:
        given = is_number(value)
    if not given:
        wanted = "a whole number" if whole else "a number"
        raise TunerInputError(f"{name} is {shown(value)}: it must be {wanted}, {_limits(key)}")
    if value < key.low or value > key.high or (key.above and value == key.low):
        raise TunerInputError(f"{name} is {shown(value)}: it must be {_limits(key)}")
    return int(value) if whole else float(value)


def _limits(key: Key) -> str:
    low = f"more than {key.low}" if key.above else f"at least {key.low}"
    return low if math.isinf(key.high) else f"{low} and at most {key.high}"


class _Loader(yaml.SafeLoader):
    """A key that stands twice in one mapping is refused; YAML's own loader takes the last. So is a
    whole number with more digits than Python reads.
    """

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        try:
            return super().construct_yaml_int(node)
        except ValueError:
            raise yaml.constructor.ConstructorError(
                None, None, f"{shown(node.value)} is no number that anything takes", node.start_mark
            ) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} stands there twice", key.start_mark
                )
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)


def _read(path: str | Path) -> Mapping[str, Any]:
    try:
        content = yaml.load(Path(path).read_text(encoding="utf-8-sig"), _Loader)  # a SafeLoader
    except OSError as error:
        raise TunerInputError(
            f"deployment {str(path)!r} cannot be read: {error.strerror}"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError, ValueError) as error:
        detail = " ".join(str(error).split())
        raise TunerInputError(f"deployment {str(path)!r} is not YAML: {detail}") from error
    except RecursionError as error:
        raise TunerInputError(
            f"deployment {str(path)!r} is nested too deeply: write keys, and one section deep"
        ) from error
    if not isinstance(content, Mapping):
        raise TunerInputError(
            f"deployment {str(path)!r} holds a {type(content).__name__}: it must map keys to values"
        )
    return content


def _flat(document: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted names to values, unknown ones refused; a null counts as not given."""
    flat: dict[str, Any] = {}
    for name, value in document.items():
        if not isinstance(name, str):
            raise TunerInputError(f"key {name!r} is not a text.{near_match(str(name), KEYS)}")
        if name in _SECTIONS and isinstance(value, Mapping):
            known = [k.split(".")[1] for k in KEYS if k.startswith(name + ".")]
            for inner, item in value.items():
                if inner not in known:
                    raise TunerInputError(
                        f"unknown key {name}.{inner}.{near_match(str(inner), known)}"
                    )
                flat[f"{name}.{inner}"] = item
        elif name in _SECTIONS and value is None:
            continue
        elif name in _SHORT:
            flat[_SHORT[name]] = value
        elif name in KEYS:
            flat[name] = value
        elif name in _SECTIONS:
            raise TunerInputError(f"{name} is {shown(value)}: it must map keys to values")
        else:
            known = sorted(_SECTIONS | {k for k in KEYS if "." not in k})
            if "." in name:
                known = sorted(KEYS)
            raise TunerInputError(f"unknown key {name!r}.{near_match(name, known)}")
    return {name: value for name, value in flat.items() if value is not None}


def _drafters(checked: Mapping[str, Any]) -> tuple[str, ...]:
    has_model = "draft_model" in checked
    if "drafters" not in checked:
        return FAMILIES if has_model else tuple(f for f in FAMILIES if f != "draft_model")
    drafters: tuple[str, ...] = checked["drafters"]
    if not drafters:
        raise TunerInputError(f"drafters is empty: name at least one of {', '.join(FAMILIES)}")
    if "draft_model" in drafters and not has_model:
        raise TunerInputError("drafter 'draft_model' needs a model: give --draft-model DIR")
    if has_model and "draft_model" not in drafters:
        raise TunerInputError(
            f"draft_model {checked['draft_model']!r} is given but drafters leave it out: "
            "add 'draft_model' to drafters, or drop the folder"
        )
    return drafters
