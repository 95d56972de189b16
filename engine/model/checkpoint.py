"""Tensors of a Hugging Face checkpoint folder: found, checked and read one at a time."""

from __future__ import annotations

import hashlib
import json
import pickle
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open

from draftsmith.engine.errors import EngineInputError, UnsupportedError, reason_of
from draftsmith.engine.model.config_file import parse_json

_WEIGHT_DTYPES = frozenset({"F64", "F32", "F16", "BF16"})
_SAMPLE_BYTES = 64


class Checkpoint(Protocol):
    """Named tensors. ``read`` raises KeyError for a name that is not among ``numels``."""

    @property
    def numels(self) -> Mapping[str, int]: ...

    def read(self, name: str) -> torch.Tensor: ...

    def fingerprint_parts(self) -> Iterator[bytes]:
        """Names, shapes, types and a sample of the content, in a fixed order."""
        ...


@dataclass(frozen=True, slots=True)
class _Entry:
    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int  # bytes from the start of the file
    end: int


class SafetensorsCheckpoint:
    """One or more safetensors files, memory-mapped."""

    def __init__(self, files: Iterable[Path], stack: ExitStack) -> None:
        self._entries: dict[str, _Entry] = {}
        self._handles: dict[Path, Any] = {}
        for file in files:
            self._entries.update(_read_header(file))
            try:
                self._handles[file] = stack.enter_context(safe_open(file, framework="pt"))
            except SafetensorError as error:
                raise EngineInputError(
                    f"{file} is not a readable safetensors file ({error}); copy or download it"
                    " again"
                ) from error

    @property
    def numels(self) -> Mapping[str, int]:
        return {name: _product(entry.shape) for name, entry in self._entries.items()}

    def read(self, name: str) -> torch.Tensor:
        entry = self._entries[name]
        if entry.dtype not in _WEIGHT_DTYPES:
            raise UnsupportedError(
                f"tensor {name} is stored as {entry.dtype}; quantised weights are not supported,"
                " use a bf16, fp16 or fp32 checkpoint"
            )
        tensor: torch.Tensor = self._handles[entry.file].get_tensor(name)
        return tensor

    def fingerprint_parts(self) -> Iterator[bytes]:
        for name, entry in sorted(self._entries.items()):
            yield f"{name} {entry.dtype} {list(entry.shape)}".encode()
            with entry.file.open("rb") as stream:
                stream.seek(entry.begin)
                yield stream.read(min(_SAMPLE_BYTES, entry.end - entry.begin))
                stream.seek(max(entry.begin, entry.end - _SAMPLE_BYTES))
                yield stream.read(min(_SAMPLE_BYTES, entry.end - entry.begin))


class TensorsCheckpoint:
    """Tensors that another reader holds already. ``read`` hands each out once, so that memory falls
    as the model grows.
    """

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self._tensors = tensors

    @property
    def numels(self) -> Mapping[str, int]:
        return {name: tensor.numel() for name, tensor in self._tensors.items()}

    def read(self, name: str) -> torch.Tensor:
        return self._tensors.pop(name)

    def fingerprint_parts(self) -> Iterator[bytes]:
        for name, tensor in sorted(self._tensors.items()):
            yield f"{name} {tensor.dtype} {list(tensor.shape)}".encode()
            flat = tensor.detach().reshape(-1)
            for sample in (flat[:16], flat[-16:]):
                yield sample.contiguous().view(torch.uint8).numpy().tobytes()


@contextmanager
def open_checkpoint(folder: Path) -> Iterator[Checkpoint]:
    """The weights in ``folder``: safetensors (sharded or not), else ``pytorch_model.bin`` by
    torch's restricted reader. Raises EngineInputError when there are none, one is missing or one is
    corrupt.
    """
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        files = _shards(index)
    else:
        single = folder / "model.safetensors"
        files = [single] if single.is_file() else sorted(folder.glob("*.safetensors"))
    if files:
        with ExitStack() as stack:
            yield SafetensorsCheckpoint(files, stack)
        return
    index = folder / "pytorch_model.bin.index.json"
    files = _shards(index) if index.is_file() else sorted(folder.glob("pytorch_model*.bin"))
    if not files:
        raise EngineInputError(
            f"{folder} holds no weights; expected model.safetensors,"
            " model.safetensors.index.json with its shards,"
            " or pytorch_model.bin"
        )
    tensors: dict[str, torch.Tensor] = {}
    for file in files:
        tensors.update(_load_bin(file))
    yield TensorsCheckpoint(tensors)


def fingerprint(config: Mapping[str, Any], checkpoint: Checkpoint) -> str:
    """SHA-256 (hex) over the configuration and the stored tensors; a content sample of each tensor
    stands for its bytes. Keys that a copy or another library version changes do not count.
    """
    kept = {k: v for k, v in config.items() if k not in ("transformers_version", "_name_or_path")}
    digest = hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode())
    for part in checkpoint.fingerprint_parts():
        digest.update(struct.pack("<Q", len(part)))
        digest.update(part)
    return digest.hexdigest()


def _shards(index: Path) -> list[Path]:
    try:
        names = sorted(set(parse_json(index.read_bytes())["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise EngineInputError(f"{index} is not a shard index ({error}); copy it again") from error
    files = [index.parent / str(name) for name in names]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise EngineInputError(
            f"{index.parent} lacks {len(missing)} of {len(files)} weight shards, first"
            f" {missing[0]};"
            " finish the download"
        )
    return files


def _read_header(file: Path) -> dict[str, _Entry]:
    """Tensor entries of a safetensors file; checks that the file is as long as its header says."""
    size = file.stat().st_size
    try:
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > size - 8:
                raise ValueError(f"header of {length} bytes in a file of {size}")
            header = parse_json(stream.read(length))
        entries = {
            name: _Entry(
                file,
                str(item["dtype"]),
                tuple(item["shape"]),
                8 + length + item["data_offsets"][0],
                8 + length + item["data_offsets"][1],
            )
            for name, item in header.items()
            if name != "__metadata__"
        }
    except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise EngineInputError(
            f"{file} is not a readable safetensors file ({error}); copy or download it again"
        ) from error
    expected = max((entry.end for entry in entries.values()), default=8 + length)
    if expected != size:
        raise EngineInputError(
            f"{file} has {size} bytes, its header describes {expected}; it is cut off or damaged:"
            " copy or download it again"
        )
    return entries


def _load_bin(file: Path) -> dict[str, torch.Tensor]:
    try:
        state = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise EngineInputError(
            f"{file} cannot be read as plain tensors ({reason_of(error)}); save the"
            " model as safetensors"
        ) from error
    if not isinstance(state, dict) or not all(torch.is_tensor(item) for item in state.values()):
        raise EngineInputError(f"{file} is not a table of tensors; save the model as safetensors")
    return state


def _product(shape: tuple[int, ...]) -> int:
    product = 1
    for size in shape:
        product *= size
    return product
