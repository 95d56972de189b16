"""Every known failure of engines and tuners of this kind has a test here that carries its id.

A test for case B41 is called ``test_b41_...``; several tests may share a case. Names are read from
the sources, so this holds without collecting anything.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
CASE = re.compile(r"test_(b\d+)_")

CASES = {
    "b1": "state carried from one prompt or trial into the next",
    "b2": "acceptance counts: last step, non-prefix matches, steps without a draft",
    "b3": "a hole in the draft cache after a fully accepted round",
    "b4": "end of sequence inside a block of accepted tokens",
    "b7": "the verifier's draft distribution is not the one that was drawn from",
    "b8": "sampling from several candidates is biased",
    "b11": "an exported engine configuration that the engine does not take",
    "b12": "a trial budget that a resume doubles or that workers overrun",
    "b13": "trials stuck or killed wrongly after a kill",
    "b14": "a parity test too strict or too lax about ties",
    "b15": "batch rows that accept different counts",
    "b18": "a speed-up out of shorter output, a missing warm-up or odd averaging",
    "b20": "a best configuration out of NaN, or one that is not feasible",
    "b21": "tree positions by flat index, stale mask bits",
    "b24": "a trimmed draft vocabulary read wrongly",
    "b28": "edges of prompt lookup",
    "b29": "one trial's memory or hang harms the next",
    "b31": "resume with another search space, repeated configurations",
    "b35": "a locked database under parallel writers",
    "b39": "resources asked of Ray that never fit",
    "b41": "marks, blanks and bad lines in a workload file",
    "b46": "tied and replaced heads, captured layers",
}


def names_by_case() -> dict[str, list[str]]:
    """``file::function`` of every test that carries a case's id, methods of suites included."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(TESTS.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            named = isinstance(node, ast.FunctionDef) and CASE.match(node.name)
            if named:
                found[named.group(1)].append(f"{path.relative_to(TESTS)}::{node.name}")
    return found


@pytest.fixture(scope="module")
def covered() -> dict[str, list[str]]:
    return names_by_case()


@pytest.mark.parametrize("case", CASES)
def test_every_case_has_a_test(case: str, covered: dict[str, list[str]]) -> None:
    assert case in covered, f"no test is called test_{case}_...: {CASES[case]}"


def test_no_test_carries_an_unknown_id(covered: dict[str, list[str]]) -> None:
    unknown = {case: names for case, names in covered.items() if case not in CASES}
    assert not unknown
