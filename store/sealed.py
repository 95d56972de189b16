"""A folder of files that cannot change unnoticed: written whole or not at all, checked when read.

``manifest.json`` names every file with its size and sha256, and carries the sha256 of itself. It
has one spelling, so that any changed byte is found. Nothing but JSON, safetensors and markdown.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from draftsmith.store.errors import StoreEnvironmentError, StoreInputError

MANIFEST = "manifest.json"
SCHEMA = 1
MAX_JSON_BYTES = 1 << 28
AGAIN = "export the bundle again"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}\.(json|jsonl|md|safetensors)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Sealed:
    """What ``unseal`` found: the manifest's own entries, the files, the manifest's sha256."""

    about: dict[str, Any]
    files: dict[str, bytes]
    checksum: str


def seal(
    folder: Path, files: Mapping[str, bytes], about: Mapping[str, Any], *, replace: bool = False
) -> str:
    """Write ``files`` and a manifest with ``about`` into a temporary folder beside ``folder``,
    flush it to the disk and rename it. Returns the manifest's sha256. ``replace`` puts it in the
    place of a sealed folder that is there; anything else that is there is refused.
    """
    folder = Path(os.path.abspath(folder))
    for name in files:
        if _NAME.fullmatch(name) is None or name == MANIFEST:
            raise StoreInputError(
                f"file name {name!r}: letters, digits, '_', '-', '.', ending in .json, .jsonl, .md "
                "or .safetensors"
            )
    _check_place(folder, replace)
    manifest = _manifest(files, about)
    temporary = folder.parent / f".{folder.name}.{os.getpid()}.tmp"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        _sweep(folder)
        temporary.mkdir()
        for name, content in {**files, MANIFEST: manifest}.items():
            _write_synced(temporary / name, content)
        _sync_folder(temporary)
        if replace and folder.exists():
            old = folder.parent / f".{folder.name}.{os.getpid()}.old.tmp"
            os.rename(folder, old)
            os.rename(temporary, folder)
            shutil.rmtree(old)
        else:
            os.rename(temporary, folder)
        _sync_folder(folder.parent)
    except OSError as error:
        raise StoreEnvironmentError(
            f"cannot write {folder}: {error.strerror or error}. Fix: "
            + ("free some space" if error.errno == errno.ENOSPC else "choose a folder to write to")
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return hashlib.sha256(manifest).hexdigest()


def unseal(folder: Path) -> Sealed:
    """Read and check a sealed folder; StoreInputError says what is wrong with it."""
    try:
        if not os.path.lexists(folder / MANIFEST):
            raise StoreInputError(
                f"{folder} is no bundle: it has no {MANIFEST}; give a folder that tune wrote, or "
                f"{AGAIN}"
            )
        present = _regular_files(folder)
        raw = _read(folder / MANIFEST, MAX_JSON_BYTES)
        listed, about = _parse_manifest(folder, raw)
        missing, extra = listed.keys() - present, present - listed.keys() - {MANIFEST}
        if missing or extra:
            what, name = ("missing", min(missing)) if missing else ("not listed", min(extra))
            raise StoreInputError(f"{folder}: {name} is {what} in the bundle; {AGAIN}")
        files = {name: _checked(folder / name, *listed[name]) for name in sorted(listed)}
    except OSError as error:
        raise StoreInputError(
            f"cannot read the bundle {folder}: {error.strerror or error}"
        ) from error
    return Sealed(about, files, hashlib.sha256(raw).hexdigest())


def render_json(value: Any) -> bytes:
    """The one spelling of a bundle's JSON files: indented, keys sorted, ASCII, final newline."""
    text = json.dumps(value, indent=1, sort_keys=True, ensure_ascii=True, allow_nan=False)
    return (text + "\n").encode("ascii")


def parse_json(name: str, content: bytes) -> Any:
    """JSON in UTF-8 without NaN; StoreInputError names the file."""
    try:
        return json.loads(content.decode("utf-8"), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise StoreInputError(f"{name} is not valid JSON: {error}; {AGAIN}") from error


def _manifest(files: Mapping[str, bytes], about: Mapping[str, Any]) -> bytes:
    listed = {
        name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in files.items()
    }
    body = {"schema": SCHEMA, "about": dict(about), "files": listed}
    return render_json({**body, "self": hashlib.sha256(render_json(body)).hexdigest()})


def _parse_manifest(folder: Path, raw: bytes) -> tuple[dict[str, tuple[int, str]], dict[str, Any]]:
    manifest = parse_json(f"{folder}/{MANIFEST}", raw)
    schema = manifest.get("schema") if isinstance(manifest, dict) else None
    if type(schema) is not int or schema < 1:
        raise StoreInputError(
            f"{folder}/{MANIFEST} is no manifest of a bundle: schema {schema!r:.40}; {AGAIN}"
        )
    if schema > SCHEMA:
        raise StoreInputError(
            f"{folder}: the bundle has schema {schema}, this draftsmith reads up to {SCHEMA}; "
            "upgrade draftsmith"
        )
    body = {key: value for key, value in manifest.items() if key != "self"}
    seal_of_body = hashlib.sha256(_rendered(body)).hexdigest()
    if manifest.get("self") != seal_of_body or _rendered(manifest) != raw:
        raise StoreInputError(f"{folder}: {MANIFEST} was changed after it was written; {AGAIN}")
    files, about = manifest.get("files"), manifest.get("about")
    if not isinstance(files, dict) or not isinstance(about, dict):
        raise StoreInputError(f"{folder}: {MANIFEST} lists no files; {AGAIN}")
    listed = {}
    for name, entry in files.items():
        if _NAME.fullmatch(name) is None or name == MANIFEST:
            raise StoreInputError(
                f"{folder}: {MANIFEST} names the file {name!r:.80}: not allowed; {AGAIN}"
            )
        size = entry.get("bytes") if isinstance(entry, dict) else None
        if type(size) is not int or size < 0:
            raise StoreInputError(f"{folder}: {MANIFEST} gives {name} no size; {AGAIN}")
        listed[name] = (size, str(entry.get("sha256")))
    return listed, about


def _rendered(value: Any) -> bytes:
    try:
        return render_json(value)
    except (ValueError, RecursionError):
        return b""


def _checked(path: Path, size: int, digest: str) -> bytes:
    content = _read(path, size)
    if len(content) != size or hashlib.sha256(content).hexdigest() != digest:
        raise StoreInputError(f"{path} is not what was written (size or sha256 differs); {AGAIN}")
    return content


def _read(path: Path, limit: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    with open(descriptor, "rb") as file:
        return file.read(limit + 1)


def _regular_files(folder: Path) -> set[str]:
    names = set()
    with os.scandir(folder) as entries:
        for entry in entries:
            if not stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode):
                raise StoreInputError(
                    f"{folder}: {entry.name!r:.80} is a link, a folder or a device; a bundle holds "
                    f"plain files only; {AGAIN}"
                )
            names.add(entry.name)
    return names


def _check_place(folder: Path, replace: bool) -> None:
    for parent in folder.parents:
        if (parent / MANIFEST).is_file():
            raise StoreInputError(
                f"{folder} is inside the bundle {parent}, which would no longer be whole: choose a "
                "folder outside it"
            )
    if not os.path.lexists(folder):
        return
    if not replace:
        raise StoreInputError(f"{folder} exists already: choose another folder or remove it first")
    if folder.is_symlink() or not (folder / MANIFEST).is_file():
        raise StoreInputError(f"{folder} is there and is no bundle: choose another folder")


def _sweep(folder: Path) -> None:
    """Remove what killed writers of the same folder left behind."""
    pattern = re.compile(re.escape(f".{folder.name}.") + r"(\d+)(\.old)?\.tmp")
    for path in folder.parent.iterdir():
        match = pattern.fullmatch(path.name)
        if match and (int(match[1]) == os.getpid() or not psutil.pid_exists(int(match[1]))):
            shutil.rmtree(path, ignore_errors=True)


def _write_synced(path: Path, content: bytes) -> None:
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is no JSON number")
