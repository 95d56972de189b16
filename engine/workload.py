"""Workloads: the prompts of the real traffic, in a tuning and a held-out part.

``workload_file.py`` finds the records of a file, ``workload_formats.py`` reads one. The name
``builtin`` stands for the prompts that come with the package.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import NamedTuple

from draftsmith.engine.errors import EngineEnvironmentError, EngineInputError
from draftsmith.engine.workload_file import read_text_bytes, records
from draftsmith.engine.workload_formats import RecordError, WorkloadRow, parse_record

BUILTIN = "builtin"
_LATER_TURN = re.compile(r"#t\d+$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """``rows`` in the order of the file, without repeats. ``num_duplicates`` rows had the content
    of an earlier one (the first is kept), ``num_skipped`` could not be read and ``first_skipped``
    says why the first could not. ``sha256`` is of the file's bytes.
    """

    rows: tuple[WorkloadRow, ...]
    source: str
    sha256: str
    num_duplicates: int = 0
    num_skipped: int = 0
    first_skipped: str = ""
    num_own_sampling: int = 0  # rows whose own sampling parameters are not used


class Parts(NamedTuple):
    """The two parts of a workload: one to tune on, one to confirm on."""

    tuning: tuple[WorkloadRow, ...]
    heldout: tuple[WorkloadRow, ...]


def bundled_workload_path() -> Path:
    """The prompts that come with the package."""
    path = Path(str(resources.files("draftsmith.engine.data") / "prompts.jsonl"))
    if not path.is_file():
        raise EngineEnvironmentError(
            f"the bundled prompts are missing ({path}): reinstall draftsmith"
        )
    return path


def workload_path(name: str | Path) -> Path:
    """Where a workload is: the bundled one for ``builtin``, else the path itself."""
    return bundled_workload_path() if str(name) == BUILTIN else Path(name)


def read_workload(path: str | Path, *, skip_bad: bool = False) -> Workload:
    """Read a workload file. A record that cannot be used raises EngineInputError with its physical
    line, or is skipped and counted with ``skip_bad``. A file that cannot be opened, is no text or
    holds no prompts raises EngineInputError either way.
    """
    source = str(path)
    data = read_text_bytes(workload_path(path), source)
    rows: list[WorkloadRow] = []
    skipped: list[str] = []
    for record in records(data, source):
        try:
            rows.append(parse_record(record.value(), record.line))
        except RecordError as error:
            reason = f"workload {source!r}, line {record.line}: {error}"
            if not skip_bad:
                raise EngineInputError(
                    f"{reason}; or have bad rows skipped (--skip-bad-rows, in a deployment file"
                    " workload.skip_bad_rows)"
                ) from error
            skipped.append(reason)
    if not rows:
        found = (
            f"all {len(skipped)} lines were skipped, the first because: {skipped[0]}"
            if skipped
            else "the file is empty; write one JSON object a line, for example"
            ' {"prompt": "Once upon a time"}'
        )
        raise EngineInputError(f"workload {source!r} holds no prompts: {found}")
    unique = _unique(rows)
    return Workload(
        rows=tuple(_from_first_arrival(_distinct_ids(unique))),
        source=source,
        sha256=hashlib.sha256(data).hexdigest(),
        num_duplicates=len(rows) - len(unique),
        num_skipped=len(skipped),
        first_skipped=skipped[0] if skipped else "",
        num_own_sampling=sum(row.has_own_sampling for row in unique),
    )


def split(workload: Workload, *, heldout_fraction: float = 0.33, seed: int = 0) -> Parts:
    """Split by hash of content, so that the order of the file does not matter. Every category of
    two rows or more is in both parts; rows alone in their category are shared out together.
    """
    if not 0.0 < heldout_fraction < 1.0:
        raise EngineInputError(
            f"held-out fraction is {heldout_fraction}: choose between 0 and 1, say 0.33"
        )
    if len(workload.rows) < 2:
        raise EngineInputError(
            f"workload {workload.source!r} holds {len(workload.rows)} prompt: at least 2 different"
            " prompts are needed, one to tune on and one to confirm on"
        )
    groups = _by_category(workload.rows)
    alone = [group[0] for group in groups.values() if len(group) == 1]
    heldout: set[str] = set()
    for group in [*(group for group in groups.values() if len(group) > 1), alone]:
        if len(group) > 1:
            count = min(max(round(heldout_fraction * len(group)), 1), len(group) - 1)
            heldout.update(row.digest for row in _shuffled(group, seed)[:count])
    return Parts(
        tuning=tuple(row for row in workload.rows if row.digest not in heldout),
        heldout=tuple(row for row in workload.rows if row.digest in heldout),
    )


def limit(rows: Sequence[WorkloadRow], count: int) -> tuple[WorkloadRow, ...]:
    """``count`` of the rows (all, when there are fewer), as evenly from each category as it can
    give, chosen by hash of content and returned in their old order.
    """
    if count < 1:
        raise EngineInputError(f"limit is {count}: keep at least 1 prompt")
    queues = [_shuffled(group, 0) for group in _by_category(rows).values()]
    longest = max((len(queue) for queue in queues), default=0)
    in_turns = [queue[depth] for depth in range(longest) for queue in queues if depth < len(queue)]
    kept = {row.digest for row in in_turns[:count]}
    return tuple(row for row in rows if row.digest in kept)


def _unique(rows: Iterable[WorkloadRow]) -> list[WorkloadRow]:
    first: dict[str, WorkloadRow] = {}
    for row in rows:
        first.setdefault(row.digest, row)
    return list(first.values())


def _distinct_ids(rows: Sequence[WorkloadRow]) -> list[WorkloadRow]:
    """Ids that several rows share, or that read like a later turn's request id (``name#t2``), get a
    part of the content's digest: distinct, and the same wherever the row stands.
    """
    counts = Counter(row.row_id for row in rows)
    return [
        replace(row, row_id=f"{row.row_id}@{row.digest[:12]}")
        if counts[row.row_id] > 1 or _LATER_TURN.search(row.row_id)
        else row
        for row in rows
    ]


def _from_first_arrival(rows: Sequence[WorkloadRow]) -> list[WorkloadRow]:
    stamps = [row.arrival_s for row in rows if row.arrival_s is not None]
    origin = min(stamps, default=0.0)
    return [
        row if row.arrival_s is None else replace(row, arrival_s=row.arrival_s - origin)
        for row in rows
    ]


def _by_category(rows: Iterable[WorkloadRow]) -> dict[str, list[WorkloadRow]]:
    groups: dict[str, list[WorkloadRow]] = {}
    for row in rows:
        groups.setdefault(row.category, []).append(row)
    return dict(sorted(groups.items()))


def _shuffled(rows: Sequence[WorkloadRow], seed: int) -> list[WorkloadRow]:
    """In an order that depends on content and seed only."""
    return sorted(rows, key=lambda row: hashlib.sha256(f"{seed}:{row.digest}".encode()).digest())
