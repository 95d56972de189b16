"""What a checkpoint and a workload are, by content: the same after a move or a copy."""

from __future__ import annotations

import hashlib
from pathlib import Path

from draftsmith.tuner.errors import TunerInputError

_WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt")
_SMALL_BYTES = 32 * 1024 * 1024
_CHUNK = 1 << 20


def checkpoint_identity(path: str) -> str:
    """A short text that follows a checkpoint's content: sha256 over its JSON files and the names
    and sizes of its weight files (a GGUF file: its first MiB and its size). A name that is no path
    (the embedded default) stands for itself.
    """
    place = Path(path)
    if not place.exists():
        return f"name:{path}"
    digest = hashlib.sha256()
    files = [place] if place.is_file() else sorted(f for f in place.iterdir() if f.is_file())
    for file in files:
        size = file.stat().st_size
        if file.suffix in _WEIGHTS:
            digest.update(f"{file.name}:{size}\n".encode())
            with file.open("rb") as stream:
                digest.update(stream.read(_CHUNK))
        elif file.suffix == ".json" and size <= _SMALL_BYTES:
            digest.update(f"{file.name}\n".encode())
            digest.update(file.read_bytes())
    return f"sha256:{digest.hexdigest()}"


def file_sha256(path: Path) -> str:
    """sha256 of a file's bytes; TunerInputError when it cannot be read."""
    digest = hashlib.sha256()
    try:
        with path.open("rb") as stream:
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
    except OSError as error:
        raise TunerInputError(f"workload {str(path)!r} cannot be read: {error.strerror}") from error
    return digest.hexdigest()
