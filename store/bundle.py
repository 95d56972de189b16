"""A bundle: one exported winner with its evidence, in a sealed folder.

manifest.json     file list with sha256, schema, deployment fingerprint, versions, created
deployment.json   what was tuned for          config.json     the configuration
evidence.json     measurements and verdict    report.md       the same for people
heldout.json      hashes of held-out prompts  draft_vocab.json  ids of the trimmed draft head
outputs.jsonl     held-out outputs with their prompts' ids: ``verify`` token-forces them again
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from draftsmith.store.canonical import fingerprint, plain_json
from draftsmith.store.errors import StoreInputError
from draftsmith.store.records import BundleRecord, Json
from draftsmith.store.sealed import parse_json, render_json, seal, unseal

_LIBRARIES = ("draftsmith", "torch", "transformers", "safetensors", "sqlalchemy", "optuna", "ray")
_OBJECTS = {
    "deployment": "deployment.json",
    "config": "config.json",
    "evidence": "evidence.json",
    "heldout": "heldout.json",
}
_VOCAB, _REPORT, _OUTPUTS = "draft_vocab.json", "report.md", "outputs.jsonl"
_REQUIRED = ("deployment.json", "config.json", "evidence.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleParts:
    """The contents. ``outputs`` are one object a held-out request; ``extra`` are files for engines
    (name -> bytes; JSON, JSON lines, markdown or safetensors).
    """

    deployment: Json
    config: Json
    evidence: Json
    heldout: Json | None = None
    draft_vocab: tuple[int, ...] | None = None
    report: str = ""
    outputs: tuple[Json, ...] = ()
    extra: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A bundle that was read and found whole."""

    record: BundleRecord
    parts: BundleParts
    versions: dict[str, str]


def write_bundle(
    folder: str | Path,
    parts: BundleParts,
    *,
    replace: bool = False,
    clock: Callable[[], float] = time.time,
) -> BundleRecord:
    """Write ``parts`` into the new folder ``folder``, whole or not at all. ``replace`` lets it take
    the place of a bundle. StoreInputError for values JSON cannot hold or a folder that is taken,
    StoreEnvironmentError when the disk refuses.
    """
    mark = fingerprint(parts.deployment)
    about = {
        "kind": "draftsmith bundle",
        "created_at": clock(),
        "deployment_fingerprint": mark,
        "versions": _versions(),
    }
    place = Path(folder).expanduser().absolute()
    checksum = seal(place, _to_files(parts), about, replace=replace)
    return BundleRecord(
        path=str(place),
        checksum=checksum,
        deployment_fingerprint=mark,
        created_at=about["created_at"],  # type: ignore[arg-type]  # a float, three lines up
    )


def read_bundle(folder: str | Path) -> Bundle:
    """Read and check a bundle. StoreInputError when it was changed, cut short, has missing, extra
    or linked files, or was written by a newer draftsmith. Compare ``record.checksum`` with the
    store's to know that it is the very bundle that was written.
    """
    place = Path(folder).expanduser().absolute()
    if not place.is_dir():
        raise StoreInputError(f"bundle {place}: no such folder; give the folder that tune wrote")
    sealed = unseal(place)
    about = sealed.about
    if about.get("kind") != "draftsmith bundle":
        raise StoreInputError(f"{place} is sealed, and is no draftsmith bundle")
    parts = _from_files(place, sealed.files)
    mark, versions = about.get("deployment_fingerprint"), about.get("versions")
    if mark != fingerprint(parts.deployment):
        raise StoreInputError(f"{place}: deployment.json is not the deployment of the manifest")
    created_at = about.get("created_at")
    if not isinstance(created_at, int | float) or not isinstance(versions, dict):
        raise StoreInputError(f"{place}: the manifest's created_at or versions are missing")
    record = BundleRecord(
        path=str(place),
        checksum=sealed.checksum,
        deployment_fingerprint=mark,
        created_at=float(created_at),
    )
    return Bundle(record=record, parts=parts, versions=versions)


def _to_files(parts: BundleParts) -> dict[str, bytes]:
    files = {}
    for attribute, name in _OBJECTS.items():
        value = getattr(parts, attribute)
        if value is not None:
            files[name] = render_json(plain_json(value))
    if parts.draft_vocab is not None:
        files[_VOCAB] = render_json(plain_json(parts.draft_vocab))
    if parts.report:
        files[_REPORT] = parts.report.encode("utf-8", "replace")
    if parts.outputs:
        lines = (json.dumps(plain_json(output), allow_nan=False) for output in parts.outputs)
        files[_OUTPUTS] = "".join(f"{line}\n" for line in lines).encode("ascii")
    taken = parts.extra.keys() & {*_OBJECTS.values(), _VOCAB, _REPORT, _OUTPUTS}
    if taken:
        raise StoreInputError(
            f"extra file {min(taken)!r} is a name of the bundle itself: rename it"
        )
    return {**files, **parts.extra}


def _from_files(place: Path, files: Mapping[str, bytes]) -> BundleParts:
    left = dict(files)
    for name in _REQUIRED:
        if name not in left:
            raise StoreInputError(f"{place}: {name} is missing in the bundle")
    objects: dict[str, Any] = {}
    for attribute, name in _OBJECTS.items():
        objects[attribute] = _object(name, left.pop(name)) if name in left else None
    vocab = parse_json(_VOCAB, left.pop(_VOCAB)) if _VOCAB in left else None
    if vocab is not None and not (
        isinstance(vocab, list) and all(type(token) is int and token >= 0 for token in vocab)
    ):
        raise StoreInputError(f"{place}: {_VOCAB} is no list of token ids")
    lines = left.pop(_OUTPUTS, b"").splitlines()
    try:
        report = left.pop(_REPORT, b"").decode("utf-8")
    except UnicodeDecodeError as error:
        raise StoreInputError(f"{place}: {_REPORT} is not UTF-8: {error}") from error
    return BundleParts(
        **objects,
        draft_vocab=None if vocab is None else tuple(vocab),
        report=report,
        outputs=tuple(
            _object(f"{_OUTPUTS} line {at}", line) for at, line in enumerate(lines, start=1)
        ),
        extra=left,
    )


def _object(name: str, content: bytes) -> Json:
    value = parse_json(name, content)
    if not isinstance(value, dict):
        raise StoreInputError(f"{name} holds a {type(value).__name__}: it must be a JSON object")
    return value


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
