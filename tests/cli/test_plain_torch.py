"""Without the C++ kernels everything stays lossless, slower, and each command says so once: in
processes where no compiler is to be found, and where the user switched the kernels off.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

FORMS = {
    "switched off": ("switched off by DRAFTSMITH_KERNELS=reference", "unset it"),
    "no compiler": ("no C++ compiler: c++, g++ or clang++ is not on PATH", "install g++"),
}
PLAIN = "plain torch runs in place of the C++ kernels, slower"


@dataclass(frozen=True)
class Ran:
    document: dict[str, Any]
    stderr: str


class Plain:
    """The real command where the kernels run as plain torch for the reason ``form``."""

    def __init__(self, form: str, folder: Path) -> None:
        self.reason, self.fix = FORMS[form]
        (folder / "nothing").mkdir()
        self._folder = folder
        self._environment = {
            name: value
            for name, value in os.environ.items()
            if name not in ("CXX", "DRAFTSMITH_KERNELS")
        } | {"XDG_STATE_HOME": str(folder / "state")}
        if form == "switched off":
            self._environment |= {"DRAFTSMITH_KERNELS": "reference"}
        else:
            self._environment |= {
                "PATH": str(folder / "nothing"),
                "DRAFTSMITH_CACHE": str(folder / "cache"),
            }

    def run(self, *arguments: object) -> Ran:
        done = subprocess.run(
            [Path(sys.executable).with_name("draftsmith"), *map(str, arguments), "--json"],
            env=self._environment,
            cwd=self._folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return Ran(json.loads(done.stdout), done.stderr)

    def assert_told_once(self, texts: list[str]) -> None:
        """One of ``texts`` says that plain torch runs, why, and what to do."""
        [note] = [text for text in texts if PLAIN in text]
        assert self.reason in note and self.fix in note
        assert note.count(PLAIN) == 1


@pytest.fixture(params=FORMS)
def plain(request: pytest.FixtureRequest, tmp_path: Path) -> Plain:
    return Plain(request.param, tmp_path)


def test_every_family_is_lossless_in_bf16(plain: Plain, tiny: Path, workload: Path) -> None:
    ran = plain.run(
        *("bench", "--target", tiny, "--workload", workload, "--dtype", "bfloat16"),
        *("--max-tokens", 12, "--concurrency", 2),
    )
    rows = ran.document["configurations"]
    assert {row["config"]["drafter"] for row in rows} >= {"ngram", "suffix", "recycle"}
    for row in rows:
        assert row["lossless"] and row["num_divergent"] == 0, row["divergence"]
        assert row["num_outputs"] == ran.document["num_prompts"]
    plain.assert_told_once(ran.document["notes"])
    assert PLAIN not in ran.stderr


def test_generate_says_so_beside_the_answer(tiny: Path, tmp_path: Path) -> None:
    plain = Plain("no compiler", tmp_path)
    ran = plain.run(
        *("generate", "one two one two", "--raw", "--target", tiny, "--max-tokens", 8),
        *("--knobs", '{"drafter": "ngram"}', "--check"),
    )
    assert ran.document["verdict"] == "lossless"
    plain.assert_told_once(ran.document["notes"])
    plain.assert_told_once(ran.stderr.splitlines())


@pytest.mark.parametrize(
    ("form", "where"),
    [
        ("no compiler", ["--in-process"]),
        pytest.param("switched off", ["--ray-address", "local"], marks=pytest.mark.ray),
    ],
)
def test_a_tuning_run_says_so_early_and_in_its_result(
    form: str, where: list[str], tune_arguments: list[object], tmp_path: Path
) -> None:
    """Ray's workers run in the form of the process that started them, and report it."""
    plain = Plain(form, tmp_path)
    arguments = [argument for argument in tune_arguments if argument != "--in-process"]
    ran = plain.run(*arguments, *where, "--store", "store.db", "--out", "out")
    [tried] = ran.document["top"]
    assert tried["feasible"] and tried["num_prompts"], tried["reason"]
    plain.assert_told_once(ran.document["notes"])
    lines = ran.stderr.splitlines()
    plain.assert_told_once(lines)
    told = next(index for index, line in enumerate(lines) if PLAIN in line)
    assert told < next(index for index, line in enumerate(lines) if line.startswith("explore"))
