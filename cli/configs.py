"""Configurations as the command line takes them: JSON on the line, a file of it, or a bundle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from draftsmith.cli.errors import CliEnvironmentError, CliInputError
from draftsmith.engine.errors import EngineError, EngineInputError
from draftsmith.engine.job import DraftInputs, TargetRef
from draftsmith.engine.model.locating import locate
from draftsmith.engine.types import Sampling, SpecConfig
from draftsmith.store.bundle import Bundle, read_bundle
from draftsmith.tuner.identity import checkpoint_identity
from draftsmith.tuner.knobs import SpaceFacts
from draftsmith.tuner.space import validate
from draftsmith.tuner.strict_json import read_json

Choice = Bundle | dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A configuration with the frozen inputs of its drafter."""

    config: SpecConfig
    inputs: DraftInputs


def read_choice(knobs: str | None, bundle: Path | None) -> Choice:
    """What ``--knobs`` and ``--bundle`` name; CliInputError unless it is exactly one of them."""
    if (knobs is None) == (bundle is None):
        raise CliInputError("--bundle and --knobs both name a configuration: give exactly one")
    return open_bundle(bundle) if bundle is not None else read_knobs(str(knobs))


def open_bundle(folder: Path) -> Bundle:
    """The bundle of ``--bundle``; CliInputError for a file, StoreInputError for what is none."""
    if folder.exists() and not folder.is_dir():
        raise CliInputError(
            f"--bundle {folder} is a file: give the folder that tune or export wrote (a file of "
            "outputs is what draftsmith verify takes)"
        )
    return read_bundle(folder)


def resolve(choice: Choice, facts: SpaceFacts) -> Chosen:
    """The configuration checked against the model; TunerInputError names a wrong knob."""
    if isinstance(choice, dict):
        return Chosen(config=validate(choice, facts), inputs=DraftInputs())
    inputs = DraftInputs(draft_vocab_ids=choice.parts.draft_vocab or ())
    return Chosen(config=validate(choice.parts.config, facts), inputs=inputs)


def read_knobs(text: str) -> dict[str, Any]:
    """A JSON object, given as such or as the path of a file that holds one."""
    source, content = "--knobs", text
    if not text.strip():
        raise CliInputError(
            "--knobs is empty, as an unset variable leaves it: give a configuration, such as "
            '\'{"drafter": "ngram"}\', or drop it'
        )
    if not text.lstrip().startswith("{"):
        source = text
        try:
            content = Path(text).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise CliInputError(
                f"--knobs {text!r} is neither a JSON object nor a file that can be read: "
                'write for example \'{"drafter": "ngram", "block_size": 4}\''
            ) from error
    try:
        value = read_json(content)
    except (ValueError, RecursionError) as error:
        raise CliInputError(f"{source} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CliInputError(f"{source} holds a {type(value).__name__}: it must be a JSON object")
    return value


def target_of(choice: Choice, given: str | None) -> TargetRef | None:
    """How a bundle's target was loaded; None for plain knobs, or when the bundle does not say. The
    form of its weights is left to this machine: it changes no output. Unless a target is ``given``
    in its place, CliInputError or CliEnvironmentError when it is not here.
    """
    if isinstance(choice, dict):
        return None
    values = choice.parts.evidence.get("target")
    if not isinstance(values, dict):
        return None
    ref = TargetRef(**_known(TargetRef, values, "evidence.json: target"))
    if given is None:
        _find(ref.path, choice.record.path)
    return replace(ref, weights="auto")


def foreign_target(choice: Choice, ref: TargetRef) -> str | None:
    """What there is to say when a bundle was tuned for another model than ``ref``, else None."""
    if isinstance(choice, dict):
        return None
    described = choice.parts.deployment.get("target")
    tuned = described.get("checkpoint") if isinstance(described, dict) else None
    found = checkpoint_identity(ref.path)
    if not isinstance(tuned, str) or tuned == found:
        return None
    return (
        f"bundle {choice.record.path} was tuned for another target ({tuned:.19}) than {ref.path} "
        f"({found:.19}): its evidence and its outputs are those of the other one"
    )


def sampling_of(choice: Choice) -> Sampling:
    """The sampling that a bundle was tuned for; the defaults (greedy) for plain knobs."""
    values = {} if isinstance(choice, dict) else choice.parts.evidence.get("sampling") or {}
    return to_sampling(values, "evidence.json: sampling")


def to_sampling(values: Mapping[str, Any], where: str, base: Sampling | None = None) -> Sampling:
    """``base`` with the fields of a JSON object on top; CliInputError names an unknown one and one
    of another type. Ranges are the engine's to check: they depend on the model.
    """
    if not isinstance(values, Mapping):
        raise CliInputError(f"{where} is {values!r}: it must be a JSON object")
    known = _known(Sampling, values, where)
    return replace(base or Sampling(), **{k: _typed(k, v, where) for k, v in known.items()})


def by_law(verifier: str, temperature: float) -> bool:
    """Whether a verifier's outputs have stock's law and need not be stock's tokens."""
    return verifier != "coupled" and temperature > 0


def override(sampling: Sampling, flags: Mapping[str, Any]) -> Sampling:
    """``sampling`` with the flags that were given on top."""
    return replace(sampling, **{name: value for name, value in flags.items() if value is not None})


def _find(path: str, bundle: str) -> None:
    """Refuse a bundle's target that is not here: its path is the one that tune was given."""
    try:
        locate(path)
    except EngineError as error:
        kind = CliInputError if isinstance(error, EngineInputError) else CliEnvironmentError
        relative = "" if Path(path).expanduser().is_absolute() else "relative to where it was tuned"
        raise kind(
            f"bundle {bundle} names the target {path!r}, {relative or 'the place at the time'}, "
            f"and it is not here: give --target ({error})"
        ) from error


_DEFAULTS = Sampling()
_ITEMS: dict[str, type] = {"stop_token_ids": int, "stop_strings": str}


def _typed(name: str, value: Any, where: str) -> Any:
    """``value`` as the type of Sampling's field ``name``."""
    default = getattr(_DEFAULTS, name)
    if isinstance(default, tuple):
        item = _ITEMS[name]
        if isinstance(value, list | tuple) and all(type(part) is item for part in value):
            return tuple(value)
        wanted = f"a list of {'whole numbers' if item is int else 'texts'}"
    elif isinstance(default, bool):
        if isinstance(value, bool):
            return value
        wanted = "true or false"
    elif isinstance(default, float):
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value
        wanted = "a number"
    else:
        if type(value) is int:
            return value
        wanted = "a whole number"
    raise CliInputError(f"{where}: {name} is {value!r}, it must be {wanted}")


def _known(record: type, values: Mapping[str, Any], where: str) -> dict[str, Any]:
    names = [item.name for item in fields(record)]
    for name in values:
        if name not in names:
            raise CliInputError(f"{where} has the unknown key {name!r}; known: {', '.join(names)}")
    return dict(values)
