"""``make evidence``: passed sections are kept, failed ones are shown with their reason and run
again, and what a person wrote around the generated part stays.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"


@pytest.fixture
def evidence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, with a root of its own."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import evidence as script

    monkeypatch.setattr(script, "ROOT", tmp_path)
    monkeypatch.setattr(script, "machine", lambda: {"processor": "a test's"})
    (tmp_path / "runs").mkdir()
    return script


def section(evidence: ModuleType, name: str, code: str, **fields: Any) -> Any:
    from evidence_sections import Section, Step, Told

    return Section(
        name=name,
        title=f"{name} holds",
        steps=(Step(("python", "-c", code), Path("runs") / f"{name}.txt"),),
        tell=lambda root: Told(text=(root / "runs" / f"{name}.txt").read_text()),
        **fields,
    )


def place(evidence: ModuleType, *, fresh: bool = False) -> Any:
    return evidence.Place(folder=Path("runs"), document=Path("measurements.md"), fresh=fresh)


COUNT = "import pathlib; p = pathlib.Path('count'); p.open('a').write('x'); print(p.read_text())"


def test_a_passed_section_is_not_run_again_unless_asked(
    evidence: ModuleType, tmp_path: Path
) -> None:
    counted = section(evidence, "counted", COUNT)
    evidence.carry_out(counted, place(evidence))
    evidence.carry_out(counted, place(evidence))
    assert (tmp_path / "count").read_text() == "x"
    evidence.carry_out(counted, place(evidence, fresh=True))
    assert (tmp_path / "count").read_text() == "xx"


def test_a_failed_section_is_shown_and_run_again(evidence: ModuleType, tmp_path: Path) -> None:
    broken = section(evidence, "broken", f"{COUNT}; raise SystemExit('the margin was negative')")
    unseen = section(evidence, "unseen", COUNT)
    evidence.carry_out(broken, place(evidence))
    evidence.carry_out(broken, place(evidence))
    assert (tmp_path / "count").read_text() == "xx"
    result = json.loads((tmp_path / "runs" / "broken.json").read_text())
    assert result["status"] == "failed" and "the margin was negative" in result["reason"]
    evidence.write_document([broken, unseen], place(evidence))
    text = (tmp_path / "measurements.md").read_text()
    assert "**Failed:** exit code 1: " in text and "the margin was negative" in text
    assert "| unseen | not run |" in text


def test_text_around_the_generated_part_stays(evidence: ModuleType, tmp_path: Path) -> None:
    document = tmp_path / "measurements.md"
    document.write_text(f"# Mine\n\n{evidence.BEGIN}stale\n{evidence.END}\nremarks\n")
    told = section(evidence, "told", "print('a new table')")
    evidence.carry_out(told, place(evidence))
    for _ in range(2):
        evidence.write_document([told], place(evidence))
    text = document.read_text()
    assert text.startswith("# Mine\n") and text.endswith("remarks\n")
    assert text.count("\na new table\n") == 1 and "stale" not in text
    assert "python -c" in text and "a test's" in text


def test_words_taken_from_a_result_are_shown_as_a_command(
    evidence: ModuleType, tmp_path: Path
) -> None:
    from evidence_sections import Step

    (tmp_path / "answer.json").write_text('{"bundle_path": "out/b"}')
    step = Step(("python", "-c", "import sys; print(sys.argv[1])", "@answer.json:bundle_path"))
    assert evidence.shown(step).endswith("$(jq -r .bundle_path answer.json)")
    log = tmp_path / "log"
    assert evidence.run(step, log) == "" and "out/b" in log.read_text()
    missing = Step(("python", "-c", "pass", "@none.json:bundle_path"))
    assert "none.json" in evidence.run(missing, log)


def test_every_section_names_what_it_leaves(evidence: ModuleType) -> None:
    """The whole list and its smoke form are the same sections, each with commands."""
    from evidence_sections import Sizes, sections

    folder = Path("runs") / "evidence"
    whole = sections(Sizes(), "builtin", folder)
    small = sections(Sizes.smoke(folder), "prompts.jsonl", folder)
    assert [s.name for s in whole] == [s.name for s in small]
    assert [s.name for s in whole] == [
        *("parity", "lossless-fp32", "lossless-bf16", "lossless-neighbours", "forcing-clean"),
        *("mutants", "kills", "tune", "kernels"),
    ]
    assert all(s.steps for s in whole)
    assert all(sys.executable not in evidence.shown(step) for s in whole for step in s.steps)


def test_the_section_bench_runs_further_engines_and_tells_every_run(
    evidence: ModuleType, tmp_path: Path
) -> None:
    from evidence_bench import BenchSizes, bench_section, tell_bench

    sizes = BenchSizes().beside(["vllm"], ["vllm=env/bin/python"])
    made = bench_section(sizes, "builtin", Path("runs"))
    assert len(made.steps) == len(sizes.batches)
    assert all("--peer-python" in step.words for step in made.steps)
    assert ["--steps" in step.words for step in made.steps] == [True, False, False, False]
    interval = {"ratio": 1.5, "low": 1.25, "high": None}
    row = {"name": "them", "tokens_per_s": 10.0, "decode_tokens_per_s": None, "failure": ""}
    row |= {"versions": {"them": "3"}, "note": "", "num_equal": 1, "num_outputs": 2}
    absent = {**row, "name": "other", "failure": "not installed: x", "ours_over_it": {}}
    absent |= {"versions": {}, "tokens_per_s": None}
    document = {
        "concurrency": 1,
        "num_prompts": 2,
        "stock": {"tokens_per_s": 15.0, "decode_tokens_per_s": 20.0},
        "configurations": [],
        "peers": [{**row, "ours_over_it": {"stock": interval}}, absent],
    }
    answer = tmp_path / "bench-1.json"
    answer.write_text(json.dumps(document))
    told = tell_bench([answer, tmp_path / "bench-4.json"])
    assert "| them | 10.00 | - | - | - | 1 of 2 |" in told.text
    assert "| stock | 1.50x |" in told.text and "not installed: x" in told.text
    assert told.reason == "bench-4.json: no result"


def test_the_costs_are_told_and_held_against_their_bars(evidence: ModuleType) -> None:
    from evidence_costs import CostSizes, cost_sections, tell_drafting, tell_memory

    made = cost_sections(CostSizes(), Path("runs"))
    for section in made:  # each command is one of this repository's
        assert (SCRIPTS.parent / section.steps[0].words[2]).is_file()
    cell = {"median_us": 20.0, "nodes": 4.5, "read_us_per_token": 2.25}
    slow = {"histories": {"100": cell, "100000": {**cell, "median_us": 60.0}}, "ratio": 3.0}
    flat = {"histories": {"100": cell, "100000": cell}, "ratio": 1.0}
    drafters = {"flat one": flat, "slow one": slow}
    told = tell_drafting(
        {"most": 2.0, "drafters": {k: {**v, "bytes_per_token": 44.0} for k, v in drafters.items()}}
    )
    assert "| flat one | 20 (4.5) | 20 (4.5) | 1.00 | 2.2 | 44 |" in told.text
    assert told.reason.endswith(": slow one")
    runs = {"stock": {"cache": 100_000_000, "peak": 330_000_000, "ratio": 1.1}}
    case = {"weights": 200_000_000, "after_loading": 210_000_000, "runs": runs}
    assert not tell_memory({"most": 1.3, "cases": {"bf16": case}}).reason
    told = tell_memory({"most": 1.05, "cases": {"bf16": case}})
    assert "| bf16 | stock | 200 | 210 | 100 | 330 | 1.10 |" in told.text
    assert told.reason.endswith("bf16, stock")


def test_outputs_are_counted_by_configuration_and_by_batch(evidence: ModuleType) -> None:
    from evidence_sections import _tell_lossless

    part = {"outputs": 2, "tokens": 8, "steps": 4, "equal": 2, "ties": 0}
    part |= {"divergent": 0, "ok": True}
    tied = {**part, "equal": 1, "ties": 1, "ok": False}
    parts = {"ngram chain, T=0, batch 1": part, "ngram chain, T=0.8, batch 8": tied}
    parts["ngram chain, T=0, batch 8"] = {**part, "tokens": 40}  # 48 tokens in 8 steps
    told = _tell_lossless({"parts": parts, "row_stable": True})
    assert "| all | 6 | 56 | - | - | 5 | 1 | 0 |" in told.text
    assert "| ngram chain | 6 | 56 | 6.00 | 2.00 | 5 | 1 | 0 |" in told.text
    assert "| all, batch 8 | 4 | 48 | - | - | 3 | 1 | 0 |" in told.text
    assert told.reason == "not equal to stock: ngram chain, T=0.8, batch 8"


def test_every_configuration_is_told_by_its_own_name(evidence: ModuleType) -> None:
    from evidence_model import _key, configurations
    from evidence_sections import _tell_lossless

    names = list(configurations(num_layers=6, vocab_size=100))
    part = {"outputs": 1, "tokens": 3, "steps": 2, "equal": 1, "ties": 0, "divergent": 0}
    parts = {_key(name, 0.8, 4): {**part, "ok": True} for name in names}
    told = _tell_lossless({"parts": parts, "row_stable": True})
    for name in names:
        assert "," not in name  # --configs is a list with commas
        assert f"| {name} | 1 | 3 | - | 1.50 | 1 | 0 | 0 |" in told.text


def test_the_summary_names_the_commit(evidence: ModuleType, tmp_path: Path) -> None:
    told = section(evidence, "told", "print('a table')")
    evidence.carry_out(told, place(evidence))
    evidence.write_document([told], place(evidence))
    outside = (tmp_path / "measurements.md").read_text()
    assert re.search(r"\| told \| passed \| [\d-]+ \| - \| 0\.0 \|", outside)  # outside git
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path))
    (tmp_path / "file").write_text("1")
    for words in (("init", "-q"), ("add", "file"), ("commit", "-qm", "one")):
        subprocess.run([*git, *words], check=True)
    clean = evidence.commit()
    assert re.fullmatch("[0-9a-f]{7,}", clean)
    (tmp_path / "file").write_text("2")
    assert evidence.commit() == clean + "+"


@pytest.mark.parametrize("spread", [True, False])
def test_prompts_are_shared_out_so_that_each_configuration_has_all_of_them(
    evidence: ModuleType, spread: bool
) -> None:
    from evidence_model import share

    batches = (1, 4, 8)
    every = list(range(10))
    for turn in range(3):
        shares = [share(every, turn + place, batches, spread) for place in range(3)]
        met = sorted(number for part in shares for number in part)
        assert met == (every if spread else sorted(every * 3))
