"""The composition root: builds stores, engines and executors out of options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import platformdirs
import torch
import typer

from draftsmith.cli.environment import read_environment
from draftsmith.cli.errors import CliInputError
from draftsmith.engine.job import TargetRef, WeightForm
from draftsmith.engine.model.loading import LoadedTarget, load_target
from draftsmith.engine.model.locating import resolve_device
from draftsmith.engine.native import NativeEngine
from draftsmith.engine.timing import MonotonicClock
from draftsmith.kernels.notice import slower_note
from draftsmith.store.addresses import parse_address
from draftsmith.store.database import Database
from draftsmith.store.migrations.upgrade import open_database, open_existing
from draftsmith.store.repository import Repository
from draftsmith.tuner.executor import Executor
from draftsmith.tuner.knobs import DRAFTERS, SpaceFacts
from draftsmith.workers.cluster import ClusterConfig
from draftsmith.workers.inprocess import InProcessExecutor
from draftsmith.workers.measure import make_measurer
from draftsmith.workers.pool import RayExecutor
from draftsmith.workers.resources import WorkerRequest, device_kind
from draftsmith.workers.timed_run import Rival

LOCAL = "local"


@dataclass(frozen=True, slots=True)
class Running:
    """A loaded target and the engine over it."""

    target: LoadedTarget
    engine: NativeEngine
    kernel_note: str | None  # where the kernels run in a slower form

    @property
    def tokenizer(self) -> Any:
        return self.target.tokenizer

    def facts(self, temperature: float) -> SpaceFacts:
        """What the limits of the knobs depend on."""
        info = self.target.model.info
        return SpaceFacts(
            num_layers=info.num_layers,
            vocab_size=info.vocab_size,
            families=DRAFTERS,
            layer_subsets=info.supports_layer_subsets,
            temperature=temperature,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Options that say how a target is loaded; None keeps what is known without them."""

    path: str | None
    dtype: str | None = None
    device: str | None = None
    num_threads: int | None = None
    weights: str | None = None

    def apply(self, base: TargetRef | None = None) -> TargetRef:
        """``base`` (a bundle's target) with the options that were given on top."""
        path = self.path or (base.path if base else None)
        if path is None:
            raise CliInputError(
                "--target is missing: give a checkpoint folder, a GGUF file or smollm2"
            )
        ref = replace(base or TargetRef(path=path), path=path)
        if self.dtype is not None:
            dtype = cast(Literal["bfloat16", "float32", "float16"], str(self.dtype))
            ref = replace(ref, dtype=dtype)
        if self.device is not None:
            ref = replace(ref, device=self.device)
        if self.num_threads is not None:
            ref = replace(ref, num_threads=self.num_threads)
        if self.weights is not None:
            ref = replace(ref, weights=cast(WeightForm, str(self.weights)))
        return ref


def load_engine(ref: TargetRef) -> Running:
    """Load the target into this process. Draft models are loaded on first use, like the target."""
    if ref.num_threads is not None:
        torch.set_num_threads(ref.num_threads)
    target = load_target(ref)
    engine = NativeEngine(
        target.model,
        tokenizer=target.tokenizer,
        clock=MonotonicClock(resolve_device(ref.device)),
        load_draft_model=lambda path: load_target(ref.draft(path)).model,
    )
    return Running(target, engine, kernel_note(ref.device))


def kernel_note(device: str) -> str | None:
    """Why this process's kernels run in a slower form on ``device``, and the fix; None if not."""
    return slower_note(resolve_device(device)) or None


@contextmanager
def open_executor(
    device: str,
    *,
    in_process: bool,
    ray_address: str = LOCAL,
    rivals: Mapping[str, Rival] | None = None,
) -> Iterator[Executor]:
    """Whatever measures: this process, a Ray cluster of our own, or the one at an address. Closed
    at the end of the block, with nothing left behind. ``rivals``, other engines timed in turns with
    ours, are for this process only.
    """
    if ray_address == LOCAL:
        resolve_device(device)  # refused here rather than by every job
    executor: Executor
    if in_process:
        executor = InProcessExecutor(make_measurer("local", rivals))
    else:
        kind = device_kind(device)
        cluster = ClusterConfig(
            record_dir=Path(platformdirs.user_state_dir("draftsmith")) / "clusters",
            address=None if ray_address == LOCAL else ray_address,
            environment=read_environment().for_workers,
            gpus=torch.cuda.device_count() if kind == "gpu" else 0,
        )
        executor = RayExecutor(cluster, WorkerRequest(device=kind))
    try:
        yield executor
    finally:
        executor.close()


@contextmanager
def open_store(address: str) -> Iterator[tuple[Database, Repository]]:
    """The store at ``address``, made and migrated as needed; closed at the end of the block.
    A note on stderr where its tables were added to a database of others.
    """
    database = open_database(address)
    if database.joined:
        named = ", ".join(database.joined[:3]) + (", ..." if len(database.joined) > 3 else "")
        typer.echo(
            f"note: store {database.address.shown} holds tables of others ({named}): draftsmith's "
            "were added beside them",
            err=True,
        )
    try:
        yield database, Repository(database)
    finally:
        database.close()


@contextmanager
def existing_store(address: str) -> Iterator[Repository]:
    """As ``open_store`` for commands that only read: a file that is not there is not made, and a
    database without draftsmith's tables is left as it is.
    """
    file = parse_address(address).file
    if file is not None and not file.exists():
        raise CliInputError(
            f"no store at {file}: tune writes one; name another with --store or DRAFTSMITH_STORE"
        )
    database = open_existing(address)
    try:
        yield Repository(database)
    finally:
        database.close()
