"""Names of targets and devices, resolved to something that exists on this machine."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from draftsmith.engine.errors import (
    EngineEnvironmentError,
    EngineInputError,
    UnsupportedError,
    reason_of,
)
from draftsmith.engine.model.embedded import EMBEDDED_NAME, embedded_folder

_HUB_ID = re.compile(r"[\w][\w.-]*/[\w][\w.-]*")
_HUB_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]


def locate(name: str) -> Path:
    """The folder or GGUF file that ``name`` means. Raises EngineInputError when there is none, and
    EngineEnvironmentError when it would have to come from a network that is not there.
    """
    if not name:
        raise EngineInputError("the target's path is empty; give a folder, a GGUF file or smollm2")
    path = Path(name).expanduser()
    if not path.exists():
        if name == EMBEDDED_NAME:
            return embedded_folder()
        if _HUB_ID.fullmatch(name):
            return _download(name)
        raise EngineInputError(
            f"no model at {name}: the path does not exist; give a checkpoint folder, a .gguf"
            " file, a Hugging Face"
            f" id (owner/name) or {EMBEDDED_NAME}"
        )
    if path.is_file() and path.suffix.lower() != ".gguf":
        raise EngineInputError(
            f"{path} is a file, and only .gguf files are read alone; give the folder that"
            " holds config.json"
        )
    if path.is_dir() and not any(path.iterdir()):
        raise EngineInputError(f"{path} is an empty folder; expected config.json and weights")
    return path


def resolve_device(name: str) -> torch.device:
    """``cpu``, ``cuda`` or ``cuda:N``. Raises EngineEnvironmentError when the device is absent."""
    if "," in name or name.startswith("tp"):
        raise UnsupportedError(
            f"device {name!r} asks for tensor parallel, which draftsmith does not do; name one"
            " device"
        )
    match = re.fullmatch(r"cpu|cuda(?::(\d+))?", name)
    if match is None:
        raise UnsupportedError(f"device {name!r} is not supported; use cpu, cuda or cuda:N")
    if name == "cpu":
        return torch.device("cpu")
    index = int(match.group(1) or 0)
    present = torch.cuda.device_count()
    if index >= present:
        raise EngineEnvironmentError(
            f"device {name} is not there: this machine shows torch {present} CUDA devices; use"
            " cpu or one of those"
        )
    return torch.device("cuda", index)


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=_HUB_FILES))
    except LocalEntryNotFoundError as error:
        raise EngineEnvironmentError(
            f"{name} is not a path here, and the Hugging Face hub cannot be reached; download"
            " the model elsewhere"
            " and give its folder"
        ) from error
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise EngineInputError(
            f"{name} is not a path here, and the Hugging Face hub answers: {reason_of(error)}"
        ) from error
