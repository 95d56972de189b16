"""How much of a checkpoint's matrices the 12-bit forms really pack, and to what share of bf16.

Run: ``python -P benchmarks/packing.py [--json] [FOLDER]`` (default: the embedded SmolLM2). Every
matrix of the checkpoint's safetensors is packed in both forms (panels for the CPU, windows for
devices), unpacked and compared bit by bit. A form packs a matrix when at most one per cent of its
numbers escape; the others stay bf16 and are listed with their exponent histogram as the reason. No
time is measured.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import safe_open

from draftsmith.engine.model.embedded import embedded_folder
from draftsmith.kernels.bf12_gemv import MAX_ESCAPES, commonest, high_byte_counts, pack
from draftsmith.kernels.bf12_gemv.window import best_window, exponent_counts, pack_window
from draftsmith.kernels.panels import PackedWeight

RATIO = 0.78  # packed bytes over bf16's
TALLEST = 8  # exponents of a histogram that are named


def matrices(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as tensors:
            for name in sorted(tensors.keys()):
                tensor = tensors.get_tensor(name)
                if tensor.dim() == 2:
                    yield name, tensor.to(torch.bfloat16).contiguous()


def packed_forms(weight: torch.Tensor) -> Iterator[tuple[str, PackedWeight | None, float]]:
    """(form, packed weight or None where it does not pay, share of escapes)."""
    highs, share = commonest(high_byte_counts(weight))
    yield "panels", pack(weight, highs) if share <= MAX_ESCAPES else None, share
    base, share = best_window(exponent_counts(weight))
    yield "window", pack_window(weight, base) if share <= MAX_ESCAPES else None, share


def histogram(weight: torch.Tensor) -> dict[int, float]:
    """The commonest exponents and their shares."""
    counts = exponent_counts(weight)
    order = counts.argsort(descending=True)[:TALLEST].tolist()
    return {exponent: round(int(counts[exponent]) / weight.numel(), 4) for exponent in order}


def measured(folder: Path) -> dict[str, object]:
    """Totals of both forms over a checkpoint. AssertionError for a bit that does not return."""
    whole = 0
    forms: dict[str, dict[str, float]] = {}
    plain: list[dict[str, object]] = []
    for name, weight in matrices(folder):
        size = 2 * weight.numel()
        whole += size
        for form, packed, share in packed_forms(weight):
            totals = forms.setdefault(form, dict(bytes=0, at_ratio=0, matrices=0, packed=0))
            totals["matrices"] += 1
            totals["bytes"] += size if packed is None else packed.num_bytes
            if packed is None:
                reason = dict(name=name, form=form, escapes=share, exponents=histogram(weight))
                plain.append(reason)
                continue
            assert torch.equal(packed.unpack().view(torch.int16), weight.view(torch.int16)), name
            totals["packed"] += 1
            totals["at_ratio"] += size if packed.num_bytes <= RATIO * size else 0
    summary = {
        form: dict(
            matrices=int(totals["matrices"]),
            packed=int(totals["packed"]),
            ratio=round(totals["bytes"] / whole, 4),
            share_at_ratio=round(totals["at_ratio"] / whole, 4),
        )
        for form, totals in forms.items()
    }
    return dict(bf16_bytes=whole, ratio_limit=RATIO, forms=summary, plain=plain)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="a checkpoint's folder")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of lines")
    arguments = parser.parse_args()
    found = measured(arguments.folder or embedded_folder())
    if arguments.json:
        json.dump(found, sys.stdout, indent=1)
        print()
        return
    print(f"{found['bf16_bytes']:,} bytes of bf16 matrices; every packed bit came back")
    for form, totals in found["forms"].items():  # type: ignore[attr-defined]
        print(
            f"{form}: {totals['packed']} of {totals['matrices']} matrices packed,"
            f" {totals['ratio']:.4f} of bf16;"
            f" {totals['share_at_ratio']:.1%} of the bytes at a ratio of {RATIO} or less"
        )
    for reason in found["plain"]:  # type: ignore[attr-defined]
        print("plain:", json.dumps(reason))


if __name__ == "__main__":
    main()
