"""Reading workload files: what is one record, what is refused and how; splitting and limiting."""

from __future__ import annotations

import json
import os
import random
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from draftsmith.engine.errors import EngineInputError
from draftsmith.engine.prompts import request_id
from draftsmith.engine.workload import (
    Workload,
    bundled_workload_path,
    limit,
    read_workload,
    split,
)

STORED_LENGTH = 255  # of a request id, as the store has it
GOOD = b'{"prompt": "hello"}'


def write(folder: Path, data: bytes | list[object]) -> Path:
    path = folder / "work.jsonl"
    if isinstance(data, list):
        data = "".join(json.dumps(row) + "\n" for row in data).encode()
    path.write_bytes(data)
    return path


def numbered(folder: Path, sizes: dict[str, int]) -> Workload:
    rows = [
        {"prompt": f"{name} {i}", "category": name} for name in sizes for i in range(sizes[name])
    ]
    return read_workload(write(folder, list(rows)))


def test_b41_a_byte_order_mark_changes_nothing(tmp_path: Path) -> None:
    plain = read_workload(write(tmp_path, GOOD))
    marked = read_workload(write(tmp_path, b"\xef\xbb\xbf" + GOOD))
    assert marked.rows == plain.rows
    assert plain.rows[0].text == "hello"


@pytest.mark.parametrize("bad", [b"{bad", b"3", b'{"prompt":""}', b'{"prompt": "\xff"}', b"null"])
def test_b41_a_bad_line_is_named_by_its_physical_number(tmp_path: Path, bad: bytes) -> None:
    path = write(tmp_path, GOOD + b"\n\n" + bad + b"\n" + b'{"prompt": "more"}')
    with pytest.raises(EngineInputError) as caught:
        read_workload(path)
    assert str(path) in str(caught.value)
    assert "line 3:" in str(caught.value)
    skipped = read_workload(path, skip_bad=True)
    assert [row.text for row in skipped.rows] == ["hello", "more"]
    assert [row.line for row in skipped.rows] == [1, 4]
    assert skipped.num_skipped == 1
    assert "line 3:" in skipped.first_skipped


@pytest.mark.parametrize("data", [b"", b"\n", b" \t\r\n\r\n  ", b"\xef\xbb\xbf", b"[]", b" [ ] "])
def test_b41_an_empty_file_holds_no_prompts(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(EngineInputError, match="no prompts"):
        read_workload(write(tmp_path, data))


def test_b41_skipping_every_line_leaves_no_prompts_and_says_why(tmp_path: Path) -> None:
    with pytest.raises(EngineInputError, match=r"no prompts.* all 2 .*line 1: holds a number"):
        read_workload(write(tmp_path, b"3\n4\n"), skip_bad=True)


def test_b41_crlf_and_line_separators_inside_strings_keep_one_record(tmp_path: Path) -> None:
    texts = ["a\u2028b", "c\u2029d", "e\x85f", "g\u000bh"]
    lines = [json.dumps({"prompt": text}, ensure_ascii=text.isascii()) for text in texts]
    workload = read_workload(write(tmp_path, "\r\n".join(lines).encode()))
    assert [row.text for row in workload.rows] == texts
    assert [row.line for row in workload.rows] == [1, 2, 3, 4]


def test_b41_what_is_no_readable_text_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(EngineInputError, match="is a directory"):
        read_workload(tmp_path)
    with pytest.raises(EngineInputError, match="does not exist"):
        read_workload(tmp_path / "absent.jsonl")
    with pytest.raises(EngineInputError, match="cannot be read"):
        read_workload("a\0b")
    with pytest.raises(EngineInputError, match="UTF-16"):
        read_workload(write(tmp_path, '{"prompt": "x"}'.encode("utf-16")))
    with pytest.raises(EngineInputError, match="not text"):
        read_workload(write(tmp_path, b"\x1f\x8b\x08\x00\x00compressed"))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(EngineInputError, match="not a regular file"):
        read_workload(tmp_path / "pipe")


def test_b41_a_file_without_read_permission_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    path = write(tmp_path, GOOD)
    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(EngineInputError, match=r"cannot be read \(Permission denied\)"):
        read_workload(path)


def test_a_json_array_is_read_element_by_element_with_lines(tmp_path: Path) -> None:
    text = '\ufeff [\n  {"prompt": "a"},\n\n  {"prompt":\n "b"}\n, 7]\n'
    path = write(tmp_path, text.encode())
    with pytest.raises(EngineInputError, match="line 6: holds a number"):
        read_workload(path)
    rows = read_workload(path, skip_bad=True).rows
    assert [(row.text, row.line) for row in rows] == [("a", 2), ("b", 4)]


@pytest.mark.parametrize(
    "text", ['[{"prompt": "a"}', '[{"prompt": "a"} 3]', "[1,]", '["a"] b', "["]
)
def test_a_broken_json_array_is_refused_even_when_skipping(tmp_path: Path, text: str) -> None:
    with pytest.raises(EngineInputError, match="line 1: not a JSON array"):
        read_workload(write(tmp_path, text.encode()), skip_bad=True)


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.one_of(st.binary(), st.lists(st.binary() | st.just(GOOD)).map(b"\n".join)))
@example(data=b"[" * 100_000)
@example(data=b'{"a":' * 100_000)
@example(data=b'{"prompt": ' + b"9" * 5000 + b"}")
@example(data=b'{"prompt": ' + b"[" * 900 + b"]" * 900 + b"}")
@example(data=b'{"prompt": "x", "timestamp": 1e999}')
@example(data=b'{"prompt": "\\ud800"}')
def test_random_bytes_raise_nothing_but_input_errors(tmp_path: Path, data: bytes) -> None:
    path = write(tmp_path, data)
    for skip_bad in (False, True):
        try:
            assert read_workload(path, skip_bad=skip_bad).rows
        except EngineInputError as error:
            assert str(path) in str(error)


KEYS = st.sampled_from(
    ["prompt", "prompt_ids", "messages", "conversations", "turns", "body", "id", "category"]
    + ["max_tokens", "timestamp", "role", "content", "from", "value", "type", "text"]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rows=st.lists(st.dictionaries(KEYS, JSON, max_size=5), min_size=1, max_size=3))
def test_random_records_raise_nothing_but_input_errors(tmp_path: Path, rows: list[object]) -> None:
    path = write(tmp_path, rows)
    try:
        workload = read_workload(path, skip_bad=True)
    except EngineInputError as error:
        assert "no prompts" in str(error)
        return
    assert all(row.prompt_ids or row.text or row.turns for row in workload.rows)
    assert len({row.row_id for row in workload.rows}) == len(workload.rows)


def test_duplicates_are_kept_once_and_counted(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "prompt": "same"},
        {"id": "b", "prompt": "same", "max_tokens": 5},
        {"id": "c", "turns": ["same"]},
        {"id": "d", "messages": [{"role": "user", "content": "same"}]},
        {"id": "e", "prompt": "other"},
    ]
    workload = read_workload(write(tmp_path, list(rows)))
    assert [row.row_id for row in workload.rows] == ["a", "c", "e"]
    assert workload.num_duplicates == 2


def test_shared_and_confusable_ids_become_distinct_whatever_the_order(tmp_path: Path) -> None:
    rows = [{"id": 1, "prompt": "a"}, {"id": "1", "prompt": "b"}, {"id": "x#t2", "prompt": "c"}]
    rows += [{"id": "x", "prompt": "d"}, {"prompt": "e"}, {"id": "req#test", "prompt": "f"}]
    forward = {row.text: row.row_id for row in read_workload(write(tmp_path, list(rows))).rows}
    backward = {
        row.text: row.row_id for row in read_workload(write(tmp_path, list(rows[::-1]))).rows
    }
    assert forward == backward
    assert len(set(forward.values())) == len(rows)
    assert (forward["d"], forward["f"]) == ("x", "req#test")
    assert not re.search(r"#t\d+$", forward["c"])


@pytest.mark.parametrize("identity", ["a\x00b", "\ud800", "i" * 201])
def test_an_id_that_cannot_be_kept_as_it_is_is_refused_by_line(
    tmp_path: Path, identity: str
) -> None:
    path = write(tmp_path, [{"prompt": "a"}, {"id": identity, "prompt": "b"}, {"prompt": "c"}])
    with pytest.raises(EngineInputError, match=r"line 2: .*id .*--skip-bad-rows.*skip_bad_rows"):
        read_workload(path)
    skipped = read_workload(path, skip_bad=True)
    assert [row.text for row in skipped.rows] == ["a", "c"]
    assert skipped.num_skipped == 1 and "line 2" in skipped.first_skipped


def test_the_longest_id_has_room_for_what_is_added_to_it(tmp_path: Path) -> None:
    rows = [{"id": "i" * 200, "turns": [f"{i}", "and then?"]} for i in range(8)]
    names = [row.row_id for row in read_workload(write(tmp_path, list(rows))).rows]
    assert len(set(names)) == 8
    assert max(len(request_id(name, 1_000_000)) for name in names) <= STORED_LENGTH


def test_numbers_and_nesting_that_python_refuses_are_said_in_our_words(tmp_path: Path) -> None:
    number = b'{"prompt": "a", "max_tokens": ' + b"9" * 5000 + b"}"
    deep = b'{"prompt": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    cases = [(number, "whole number of more than 4300 digits: shorten"), (deep, "nested too deep")]
    for record, said in cases:
        for data in (GOOD + b"\n" + record, b"[" + GOOD + b",\n" + record + b"]"):
            with pytest.raises(EngineInputError, match=said) as caught:
                read_workload(write(tmp_path, data))
            assert "sys." not in str(caught.value) and "recursion" not in str(caught.value)
    with pytest.raises(EngineInputError, match="is not UTF-8 at byte 15: save the file as UTF-8"):
        read_workload(write(tmp_path, b'[{"prompt": "a\xff"}]'))


def test_arrivals_count_from_the_earliest(tmp_path: Path) -> None:
    rows = [
        {"prompt": "a", "timestamp": "2025-01-31T09:00:02+01:00"},
        {"prompt": "b"},
        {"prompt": "c", "timestamp": "2025-01-31T08:00:00Z"},
        {"prompt": "d", "timestamp": "2025-01-31T08:00:01.5"},
    ]
    workload = read_workload(write(tmp_path, list(rows)))
    assert [row.arrival_s for row in workload.rows] == [2.0, None, 0.0, 1.5]


def test_the_split_does_not_depend_on_order(tmp_path: Path) -> None:
    workload = numbered(tmp_path, {"a": 7, "b": 5, "": 4})
    rows = [{"prompt": row.text, "category": row.category} for row in workload.rows]
    random.Random(0).shuffle(rows)
    shuffled = read_workload(write(tmp_path, list(rows)))
    for seed in (0, 1):
        one, other = split(workload, seed=seed), split(shuffled, seed=seed)
        assert {row.text for row in one.heldout} == {row.text for row in other.heldout}
    assert split(workload, seed=0) != split(workload, seed=1)


@pytest.mark.parametrize("fraction", [0.01, 0.33, 0.5, 0.99])
def test_both_parts_keep_every_category(tmp_path: Path, fraction: float) -> None:
    workload = numbered(tmp_path, {"two": 2, "nine": 9, "one": 1, "lone": 1})
    parts = split(workload, heldout_fraction=fraction)
    assert sorted(row.text or "" for row in parts.tuning + parts.heldout) == sorted(
        row.text or "" for row in workload.rows
    )
    for part in parts:
        assert {"two", "nine"} <= {row.category for row in part}
        assert len({row.category for row in part} & {"one", "lone"}) == 1
    expected = min(max(round(fraction * 9), 1), 8)
    assert sum(row.category == "nine" for row in parts.heldout) == expected


def test_two_prompts_of_two_categories_still_make_two_parts(tmp_path: Path) -> None:
    parts = split(numbered(tmp_path, {"a": 1, "b": 1}))
    assert len(parts.tuning) == len(parts.heldout) == 1


def test_one_prompt_cannot_be_split(tmp_path: Path) -> None:
    with pytest.raises(EngineInputError, match="holds 1 prompt: at least 2 different"):
        split(read_workload(write(tmp_path, GOOD + b"\n" + GOOD)))


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.1, float("nan")])
def test_fractions_that_leave_a_part_empty_are_refused(tmp_path: Path, fraction: float) -> None:
    with pytest.raises(EngineInputError, match="held-out fraction is"):
        split(numbered(tmp_path, {"a": 4}), heldout_fraction=fraction)


def test_a_limit_is_spread_over_the_categories(tmp_path: Path) -> None:
    workload = numbered(tmp_path, {"a": 20, "b": 2, "c": 5})
    kept = limit(workload.rows, 9)
    assert Counter(row.category for row in kept) == {"a": 4, "b": 2, "c": 3}
    assert [row.line for row in kept] == sorted(row.line for row in kept)
    assert set(limit(workload.rows, 4)) <= set(kept)
    assert limit(workload.rows, 100) == workload.rows
    with pytest.raises(EngineInputError, match="limit is 0"):
        limit(workload.rows, 0)


def test_the_bundled_prompts_cover_six_kinds() -> None:
    workload = read_workload("builtin")
    assert workload.rows == read_workload(bundled_workload_path()).rows
    kinds = Counter(row.category for row in workload.rows)
    assert kinds == dict.fromkeys(["chat", "code", "edit", "summarize", "extract", "translate"], 12)
    assert workload.num_duplicates == 0
    for row in workload.rows:
        assert row.max_tokens is None
        if row.category in ("edit", "summarize", "extract"):
            assert 80 <= len(re.findall(r"\w+", row.turns[0])) <= 280, row.row_id
    parts = split(workload)
    assert Counter(row.category for row in parts.heldout) == dict.fromkeys(kinds, 4)
