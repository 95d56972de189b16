"""Each record format, and what each refuses."""

from __future__ import annotations

import pytest

from draftsmith.engine.workload_formats import Message, RecordError, WorkloadRow, parse_record


def user(content: object) -> dict[str, object]:
    return {"role": "user", "content": content}


def test_a_prompt_is_text_to_complete() -> None:
    row = parse_record({"prompt": " Once ", "category": "story", "max_tokens": 9}, 4)
    assert (row.text, row.category, row.max_tokens, row.line) == (" Once ", "story", 9, 4)
    assert (row.turns, row.prompt_ids, row.num_turns) == ((), (), 1)


@pytest.mark.parametrize("record", [{"prompt_ids": [5, 0, 9]}, {"prompt": [5, 0, 9]}])
def test_token_ids_are_taken_as_they_are(record: dict[str, object]) -> None:
    assert parse_record(record, 1).prompt_ids == (5, 0, 9)


def test_messages_are_asked_up_to_the_last_user_message() -> None:
    row = parse_record(
        {
            "messages": [
                {"role": "developer", "content": "Be brief."},
                user("Hi"),
                {"role": "assistant", "content": "Hello"},
                user([{"type": "text", "text": "And"}, {"type": "text", "text": " now?"}]),
                {"role": "assistant", "content": "the reference answer"},
            ]
        },
        1,
    )
    assert row.turns == ("And now?",)
    assert row.history == (
        Message("system", "Be brief."),
        Message("user", "Hi"),
        Message("assistant", "Hello"),
    )


def test_sharegpt_conversations_are_asked_up_to_the_last_human_turn() -> None:
    record = {
        "id": "QWJhYvA_0",
        "conversations": [
            {"from": "human", "value": "one"},
            {"from": "gpt", "value": "two"},
            {"from": "human", "value": "three"},
            {"from": "gpt", "value": "four"},
        ],
    }
    row = parse_record(record, 1)
    assert row.row_id == "QWJhYvA_0"
    assert row.history == (Message("user", "one"), Message("assistant", "two"))
    assert row.turns == ("three",)


def test_spec_bench_turns_wait_for_our_own_answers() -> None:
    row = parse_record({"question_id": 82, "category": "writing", "turns": ["a", "b"]}, 1)
    assert (row.row_id, row.category, row.turns, row.history) == ("82", "writing", ("a", "b"), ())
    assert row.num_turns == 2


def test_an_openai_batch_line_is_read_from_its_body() -> None:
    record = {
        "custom_id": "request-1",
        "method": "POST",
        "url": "/v1/chat/completions",
        "body": {"model": "m", "messages": [user("hi")], "max_tokens": 7, "temperature": 0.2},
    }
    row = parse_record(record, 1)
    assert (row.row_id, row.turns, row.max_tokens) == ("request-1", ("hi",), 7)
    assert row.has_own_sampling
    completion = parse_record({"body": {"prompt": ["x"], "max_completion_tokens": 3}}, 1)
    assert (completion.text, completion.max_tokens) == ("x", 3)
    assert not completion.has_own_sampling


def test_the_first_known_key_decides_and_null_is_absent() -> None:
    row = parse_record({"messages": None, "turns": ["t"], "prompt": "p", "max_tokens": None}, 1)
    assert row.turns == ("t",)
    assert row.text is None


def test_a_row_without_an_id_is_named_by_its_content() -> None:
    def named(record: dict[str, object]) -> WorkloadRow:
        return parse_record(record, 1)

    assert named({"prompt": "a"}).row_id == named({"prompt": "a", "max_tokens": 3}).row_id
    assert named({"prompt": "a"}).row_id != named({"turns": ["a"]}).row_id
    assert named({"prompt": "a"}).row_id != named({"prompt": "b"}).row_id
    assert named({"id": 0, "prompt": "a"}).row_id == "0"


@pytest.mark.parametrize(
    ("record", "message"),
    [
        (["prompt"], "holds a list, not a JSON object"),
        ({"text": "x"}, r"has no prompt \(its keys: 'text'\)"),
        ({"body": "x"}, "'body' is a string"),
        ({"body": {"input": "x"}}, r"has no prompt \(its keys: 'input'\)"),
        ({"prompt": " \n"}, "'prompt' is empty"),
        ({"prompt": 5}, "prompt is a number: it must be a string"),
        ({"prompt": ["a", "b"]}, "holds 2 prompts: write one a line"),
        ({"prompt": []}, "an empty prompt"),
        ({"prompt_ids": [1, -1]}, r"prompt_ids\[1\] is -1: it must be a token id"),
        ({"prompt_ids": [True]}, r"prompt_ids\[0\] is True"),
        ({"prompt_ids": [2.0]}, r"prompt_ids\[0\] is 2.0"),
        ({"prompt_ids": "1 2"}, "'prompt_ids' is a string: it must be a list"),
        ({"turns": []}, "'turns' is an empty list"),
        ({"turns": ["a", ""]}, r"turns\[1\] is an empty prompt"),
        ({"turns": ["a", 3]}, r"turns\[1\] is a number"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, "messages asks nothing"),
        ({"messages": [user("  ")]}, "last user message of messages is an empty prompt"),
        ({"messages": [user(None)]}, r"messages\[0\].content is null"),
        ({"messages": ["hi"]}, r"messages\[0\] is a string: it must be an object"),
        ({"messages": [{"role": "tool", "content": "x"}]}, r"role is 'tool': it must be one of"),
        ({"messages": [{"role": [], "content": "x"}]}, r"role is a list: it must be one of"),
        ({"messages": [user([{"type": "image_url"}])]}, "of type 'image_url': only parts of type"),
        ({"messages": [user([{"type": "text", "text": 3}])]}, r"content\[0\].text is a number"),
        (
            {"messages": [user("x"), {"role": "assistant", "content": "", "tool_calls": [1]}]},
            "calls tools, which is not supported",
        ),
        ({"conversations": [{"from": "narrator", "value": "x"}]}, "from is 'narrator'"),
        ({"prompt": "x", "id": 1.5}, "its id 1.5 is neither a string nor an integer"),
        ({"prompt": "x", "id": ""}, "its id '' is neither"),
        ({"prompt": "x", "category": 3}, "'category' is a number"),
        ({"prompt": "x", "max_tokens": 0}, "'max_tokens' is 0: it must be an integer, at least 1"),
        ({"prompt": "x", "max_tokens": True}, "'max_tokens' is True"),
        ({"prompt": "x", "max_tokens": "8"}, "'max_tokens' is '8'"),
        ({"prompt": "x", "timestamp": "soon"}, "'timestamp' is 'soon': give seconds or ISO 8601"),
        ({"prompt": "x", "timestamp": float("nan")}, "'timestamp' is nan"),
        ({"prompt": "x", "timestamp": 10**400}, "'timestamp' is 1000"),
        ({"prompt": "x", "timestamp": True}, "'timestamp' is True"),
        ({"prompt": "a\ud800"}, "prompt holds half of a surrogate pair"),
        ({"id": "\udfff", "prompt": "a"}, "id holds half of a surrogate pair"),
        (
            {"id": "a\x00b", "prompt": "a"},
            r"its id 'a\\x00b' holds a NUL \(\\u0000\): leave it out",
        ),
        ({"prompt": "x", "category": "\x00"}, r"its category '\\x00' holds a NUL"),
        (
            {"id": "i" * 201, "prompt": "x"},
            r"its id 'i{60}'\.\.\. has 201 characters: use at most 200",
        ),
        ({"id": 10**250, "prompt": "x"}, "has 251 characters: use at most 200"),
    ],
)
def test_what_cannot_be_used_is_named_with_its_fix(record: object, message: str) -> None:
    with pytest.raises(RecordError, match=message):
        parse_record(record, 1)
