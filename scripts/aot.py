"""Compile every Triton kernel ahead of time and print what it takes; no card is needed.

    python scripts/aot.py [--kernel NAME ...] [--architecture NAME ...] [--json]

Exit code 1 when one of them spills registers or takes more shared memory than the card has.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict

os.environ.pop("TRITON_INTERPRET", None)  # read when Triton is imported

from draftsmith.kernels.ahead import Usage, compile_ahead, variants
from draftsmith.kernels.backend import TRITON_KERNELS
from draftsmith.kernels.device import COMPILED_FOR


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernel", nargs="+", choices=TRITON_KERNELS, default=TRITON_KERNELS)
    parser.add_argument("--architecture", nargs="+", choices=COMPILED_FOR, default=COMPILED_FOR)
    parser.add_argument("--json", action="store_true", help="one JSON list instead of the table")
    arguments = parser.parse_args()
    usages = [
        compile_ahead(variant, architecture)
        for variant in variants(arguments.kernel)
        for architecture in arguments.architecture
    ]
    print(json.dumps([asdict(usage) for usage in usages]) if arguments.json else table(usages))
    return 0 if all(usage.fits for usage in usages) else 1


def table(usages: list[Usage]) -> str:
    heads = ("kernel", "form", "card", "warps", "stages", "registers", "shared", "spilled")
    lines = [heads, *(tuple(map(str, asdict(usage).values())) for usage in usages)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


if __name__ == "__main__":
    sys.exit(main())
