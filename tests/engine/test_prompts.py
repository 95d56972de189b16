"""Requests from rows: templates, turns, seeds, limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jinja2 import Environment
from jinja2.exceptions import TemplateError

from draftsmith.engine.errors import EngineInputError
from draftsmith.engine.prompts import (
    draft_vocab_ranking,
    num_turns,
    request_seed,
    requests_for_turn,
)
from draftsmith.engine.types import Request, Sampling
from draftsmith.engine.workload import read_workload
from draftsmith.engine.workload_formats import WorkloadRow, parse_record

SAMPLING = Sampling(max_tokens=32, seed=7)
BOS = 1


class LetterTokenizer:
    """One id a character, and a start token where special tokens are asked for."""

    def __init__(self, *, template: bool = True, system: bool = True) -> None:
        self.chat_template = "template" if template else None
        self._system = system

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return [BOS] * add_special_tokens + [ord(char) for char in text]

    def apply_chat_template(
        self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> Any:
        assert not tokenize and add_generation_prompt
        roles = [message["role"] for message in conversation]
        if "system" in roles and not self._system:
            raise TemplateError("System role not supported")
        talk = [role for role in roles if role != "system"]
        if talk != ["user", "assistant"] * (len(talk) // 2) + ["user"]:
            raise TemplateError("Conversation roles must alternate")
        return "".join(f"<{m['role']}>{m['content']}" for m in conversation) + "<assistant>"


def row(**record: object) -> WorkloadRow:
    return parse_record(record, 1)


def text_of(request: Request) -> str:
    return "".join(chr(token) for token in request.prompt_ids if token != BOS)


def one(rows: WorkloadRow, tokenizer: LetterTokenizer, **previous: str) -> Request:
    turn = len(previous) + 1
    (request,) = requests_for_turn([rows], turn, previous, tokenizer, SAMPLING).requests
    return request


def test_chats_go_through_the_template_without_a_second_start_token() -> None:
    request = one(row(turns=["hi"], category="x", timestamp=3), LetterTokenizer())
    assert text_of(request) == "<user>hi<assistant>"
    assert BOS not in request.prompt_ids
    assert (request.category, request.arrival_s) == ("x", 3.0)


def test_completions_get_the_tokenizers_special_tokens_and_no_template() -> None:
    request = one(row(prompt="abc"), LetterTokenizer())
    assert request.prompt_ids == (BOS, 97, 98, 99)


def test_token_ids_need_no_tokenizer_but_text_does() -> None:
    ids = requests_for_turn([row(prompt_ids=[4, 5])], 1, {}, None, SAMPLING)
    assert ids.requests[0].prompt_ids == (4, 5)
    with pytest.raises(EngineInputError, match="is text and the target has no tokenizer"):
        requests_for_turn([row(prompt="a")], 1, {}, None, SAMPLING)


def test_a_tokenizer_without_a_template_gets_plain_lines() -> None:
    chat = row(messages=[{"role": "system", "content": "s"}, {"role": "user", "content": "q"}])
    request = one(chat, LetterTokenizer(template=False))
    assert text_of(request) == "System: s\nUser: q\nAssistant:"
    assert request.prompt_ids[0] == BOS


def test_a_template_without_system_role_gets_it_in_the_first_user_message() -> None:
    chat = row(messages=[{"role": "system", "content": "s"}, {"role": "user", "content": "q"}])
    assert text_of(one(chat, LetterTokenizer())) == "<system>s<user>q<assistant>"
    assert text_of(one(chat, LetterTokenizer(system=False))) == "<user>s\n\nq<assistant>"


def test_what_the_template_refuses_is_named() -> None:
    twice = [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}]
    with pytest.raises(EngineInputError, match=r"'r' \(line 1\) is refused .*must alternate"):
        one(row(id="r", messages=twice), LetterTokenizer())


def test_a_template_that_cannot_be_chosen_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ValueError("This model has multiple chat templates with no default specified!")

    monkeypatch.setattr(LetterTokenizer, "apply_chat_template", refuse)
    with pytest.raises(EngineInputError, match=r"'r' \(line 1\) is refused .*no default"):
        one(row(id="r", turns=["a"]), LetterTokenizer())


def test_later_turns_follow_the_answers_to_the_earlier() -> None:
    talk = row(id="r", turns=["a", "b", "c"])
    second = one(talk, LetterTokenizer(), r="A")
    assert second.request_id == "r#t2"
    assert text_of(second) == "<user>a<assistant>A<user>b<assistant>"
    third = one(talk, LetterTokenizer(), **{"r": "A", "r#t2": "B"})
    assert third.request_id == "r#t3"
    assert text_of(third) == "<user>a<assistant>A<user>b<assistant>B<user>c<assistant>"


def test_rows_without_the_turn_are_absent_and_unanswered_ones_are_named() -> None:
    rows = [row(id="short", turns=["a"]), row(id="left", turns=["a", "b"])]
    result = requests_for_turn(rows, 2, {}, LetterTokenizer(), SAMPLING)
    assert (result.requests, result.too_long, result.unanswered) == ((), (), ("left",))
    assert num_turns(rows) == 2
    assert num_turns([]) == 0
    with pytest.raises(EngineInputError, match="turn is 0"):
        requests_for_turn(rows, 0, {}, LetterTokenizer(), SAMPLING)


def test_prompts_over_the_limit_are_left_out_whole() -> None:
    rows = [row(id="fits", prompt="abc"), row(id="long", prompt="abcd")]
    result = requests_for_turn(
        rows, 1, {}, LetterTokenizer(), SAMPLING, max_prompt_tokens=len("abc") + 1
    )
    assert [request.request_id for request in result.requests] == ["fits"]
    assert result.too_long == ("long",)


def test_a_row_can_only_lower_max_tokens() -> None:
    sampling = Sampling(max_tokens=32, min_tokens=10, temperature=0.5)
    rows = [row(prompt="a", max_tokens=4), row(prompt="b", max_tokens=99), row(prompt="c")]
    result = requests_for_turn(rows, 1, {}, LetterTokenizer(), sampling)
    limits = [(r.sampling.max_tokens, r.sampling.min_tokens) for r in result.requests]
    assert limits == [(4, 4), (32, 10), (32, 10)]
    assert {r.sampling.temperature for r in result.requests} == {0.5}


def test_seeds_follow_the_request_and_not_its_place() -> None:
    rows = [row(id=name, prompt=name) for name in "abc"]
    forward = requests_for_turn(rows, 1, {}, LetterTokenizer(), SAMPLING).requests
    backward = requests_for_turn(rows[::-1][:2], 1, {}, LetterTokenizer(), SAMPLING).requests
    seeds = {request.request_id: request.sampling.seed for request in forward}
    assert len(set(seeds.values())) == 3
    assert all(seeds[request.request_id] == request.sampling.seed for request in backward)
    assert request_seed(7, "a") == seeds["a"] != request_seed(8, "a")


def test_seeds_stay_what_they_are_so_that_stored_outputs_stay_valid() -> None:
    assert request_seed(7, "a") == 0x416CEB15D5353C38
    assert all(0 <= request_seed(seed, "x") < 2**63 for seed in range(200))


def test_the_draft_vocabulary_is_ranked_by_frequency_then_id() -> None:
    assert draft_vocab_ranking([[3, 1, 1], [9, 3], []], 10) == (1, 3, 9)
    with pytest.raises(EngineInputError, match="token id 9 is outside the vocabulary of 9"):
        draft_vocab_ranking([[9]], 9)


@pytest.mark.smollm2
def test_the_embedded_model_reads_every_bundled_prompt(smollm2_path: Path) -> None:
    from draftsmith.engine.model.loading import load_tokenizer

    tokenizer = load_tokenizer(smollm2_path)
    rows = read_workload("builtin").rows
    result = requests_for_turn(rows, 1, {}, tokenizer, SAMPLING, max_prompt_tokens=1024)
    assert len(result.requests) == len(rows)
    text = tokenizer.decode(list(result.requests[0].prompt_ids))
    assert text.startswith("<|im_start|>") and text.endswith("<|im_start|>assistant\n")
    assert rows[0].turns[0] in text


def test_a_broken_template_is_not_blamed_on_the_row() -> None:
    class Broken(LetterTokenizer):
        def apply_chat_template(self, *arguments: Any, **options: Any) -> Any:
            return Environment().from_string("{% for %}").render()

    with pytest.raises(EngineInputError, match="no Jinja template.*line 1.*copy") as caught:
        one(row(messages=[{"role": "user", "content": "hi"}]), Broken())
    assert "take turns" not in str(caught.value)
