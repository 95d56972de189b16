"""Peers in their turns: the real transformers on a tiny model, and stand-ins that fail."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from draftsmith.engine.job import STOCK, MeasureJob, MeasureResult, TargetRef
from draftsmith.engine.types import Request, Sampling, SpecConfig
from draftsmith.workers.errors import WorkerInputError
from draftsmith.workers.measure import Measurer
from draftsmith.workers.peers.catalogue import ENGINES, PeerSpec, parse_peers
from draftsmith.workers.peers.peer import Peer, PeerLoad, check_comparable, open_peers
from draftsmith.workers.peers.process import PeerProcess
from tests.support.fakepeer import HONEST, fake_python

PROMPTS = ((5, 9, 11, 5, 9), (20, 21), (7, 8, 9, 10, 7, 8, 9), (33, 12, 40))
MAX_TOKENS = 12
EOS = 1


def requests(**sampling: Any) -> list[Request]:
    asked = Sampling(**{"max_tokens": MAX_TOKENS, **sampling})
    return [
        Request(request_id=f"r{i}", prompt_ids=ids, sampling=asked, category="ab"[i % 2])
        for i, ids in enumerate(PROMPTS)
    ]


def load(model: Path, **fields: Any) -> PeerLoad:
    plain = PeerLoad(
        model=str(model), dtype="float32", device="cpu", threads=1, context=256, concurrency=1
    )
    return replace(plain, **fields)


def fake(tmp_path: Path, body: str) -> Peer:
    python = fake_python(tmp_path / "python", body)
    return Peer(PeerSpec(kind="vllm", settings={}, python=python), load(tmp_path, timeout_s=30.0))


@pytest.fixture(scope="module")
def expected(tiny_folder: Path) -> tuple[tuple[int, ...], ...]:
    """transformers' own greedy tokens, one prompt at a time, in this process."""
    model = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32).eval()
    found = []
    for ids in PROMPTS:
        made = model.generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            max_new_tokens=MAX_TOKENS,
            do_sample=False,
            eos_token_id=EOS,
            pad_token_id=EOS,
        )
        found.append(tuple(made[0, len(ids) :].tolist()))
    return tuple(found)


@pytest.mark.parametrize(
    ("settings", "concurrency", "note"),
    [
        ({}, 1, ""),
        ({}, 3, ""),
        ({"prompt_lookup_num_tokens": 4}, 3, "one request at a time"),
        ({"assistant_model": "TINY", "num_assistant_tokens": 3}, 1, ""),
    ],
)
def test_transformers_gives_its_own_greedy_tokens(
    tiny_folder: Path,
    expected: tuple[tuple[int, ...], ...],
    settings: dict[str, Any],
    concurrency: int,
    note: str,
) -> None:
    given = {k: str(tiny_folder) if v == "TINY" else v for k, v in settings.items()}
    [spec] = parse_peers([f"transformers:{json.dumps(given)}"], [])
    with open_peers([spec], load(tiny_folder, concurrency=concurrency)) as peers:
        [peer] = peers.values()
        assert peer.failure == "" and peer.note == note
        assert set(peer.versions) == {"transformers", "torch"}
        output = peer.run(requests(), [EOS])
    assert output is not None, peer.failure
    assert output.token_ids == expected
    assert output.prefill_s is not None and 0.0 < output.prefill_s <= output.seconds


def test_a_setting_that_the_engine_does_not_know_is_told(tiny_folder: Path) -> None:
    [spec] = parse_peers(['transformers:{"prompt_lookup_tokens": 4}'], [])
    with open_peers([spec], load(tiny_folder)) as peers:
        assert peers[spec.label].failure == (
            f"peer {spec.label}: prompt_lookup_tokens is no setting of transformers' "
            "GenerationConfig"
        )
        assert peers[spec.label].run(requests(), [EOS]) is None


def test_what_is_not_installed_is_named(tmp_path: Path) -> None:
    script = tmp_path / "engine.py"
    script.write_text("import no_such_module\n")
    command = [sys.executable, str(ENGINES / "serve.py"), str(script), "json", "no_such_module"]
    with PeerProcess("fake", command) as process:
        assert process.ask({"op": "load"}, 60.0) == {"absent": ["no_such_module"]}
    peer = fake(tmp_path, "answer({'absent': ['vllm']})")
    assert peer.failure.startswith("not installed: vllm")
    assert peer.run(requests(), [EOS]) is None
    assert peer.process is not None and peer.process.ended


def test_what_an_engine_prints_does_not_disturb_the_protocol(tmp_path: Path) -> None:
    script = tmp_path / "engine.py"
    script.write_text(
        "import os, subprocess, sys\n"
        "print('loading')\n"
        "class Engine:\n"
        "    versions, note = {'loud': '1'}, ''\n"
        "    def __init__(self, order):\n"
        "        os.write(1, b'to the descriptor')\n"
        "        subprocess.run(['echo', 'from a helper'])\n"
        "    def generate(self, prompts, max_tokens, stop_ids):\n"
        "        print('{}')\n"
        "        return prompts, None\n"
    )
    command = [sys.executable, str(ENGINES / "serve.py"), str(script)]
    with PeerProcess("loud", command) as process:
        assert process.ask({"op": "load"}, 60.0)["versions"] == {"loud": "1"}
        order = {"op": "generate", "prompts": [[1, 2]], "max_tokens": 1, "stop_ids": []}
        answer = process.ask(order, 60.0)
    assert answer["outputs"] == [[1, 2]] and answer["prefill_s"] is None and answer["seconds"] > 0


def measured(tiny_folder: Path, peers: dict[str, Peer]) -> MeasureResult:
    job = MeasureJob(
        job_id="job",
        target=TargetRef(path=str(tiny_folder), dtype="float32", num_threads=1),
        requests=tuple(requests()),
        configs={STOCK: SpecConfig(), "ngram": SpecConfig(drafter="ngram", block_size=2)},
        warmup_tokens=2,
    )
    return Measurer(rivals=peers).run(job)


def test_peers_take_their_turns_on_every_prompt(tiny_folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "asked"
    peer = fake(tmp_path, HONEST + f"open({str(log)!r}, 'a').write(line)\n")
    try:
        result = measured(tiny_folder, {"it": peer})
    finally:
        peer.close()
    assert result.status == "ok", result.reason
    assert [(turn.rival, turn.unit) for turn in result.rival_turns] == [("it", u) for u in range(4)]
    assert [turn.token_ids for turn in result.rival_turns] == [
        ((ids[-1], ids[0], 7),) for ids in PROMPTS
    ]
    assert {turn.category for turn in result.rival_turns} == {"a", "b"}
    asked = [json.loads(line) for line in log.read_text().splitlines()][1:]
    assert [order["prompts"] for order in asked[1:]] == [[list(ids)] for ids in PROMPTS]
    assert asked[0]["max_tokens"] == 2  # the warm-up
    assert all(order["max_tokens"] == MAX_TOKENS for order in asked[1:])
    assert all(order["stop_ids"] == [EOS] for order in asked)
    assert len(result.timings) == 8 and {output.config for output in result.outputs} == {
        STOCK,
        "ngram",
    }


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("if count > 3:\n    sys.exit(3)", "exit code 3"),
        ("if count > 3:\n    answer({'outputs': []}); continue", "without sense"),
        ("if count > 3:\n    answer({'error': 'Boom: no memory'}); continue", "Boom: no memory"),
    ],
)
def test_the_others_go_on_without_a_peer_that_fails(
    tiny_folder: Path, tmp_path: Path, body: str, reason: str
) -> None:
    peer = fake(tmp_path, body + "\n" + HONEST)
    result = measured(tiny_folder, {"it": peer})
    assert result.status == "ok" and len(result.timings) == 8
    assert len(result.rival_turns) == 1  # the first prompt, after load and warm-up
    assert reason in peer.failure
    assert peer.process is not None and peer.process.ended


@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 0.5},
        {"repetition_penalty": 1.1},
        {"min_tokens": 3},
        {"stop_strings": ("a",)},
    ],
)
def test_only_plain_greedy_requests_are_comparable(sampling: dict[str, Any]) -> None:
    check_comparable(requests())
    with pytest.raises(WorkerInputError, match="request r0 has"):
        check_comparable(requests(**sampling))
    mixed = [*requests(), *requests(max_tokens=3)]
    with pytest.raises(WorkerInputError, match="asks for 3 tokens"):
        check_comparable(mixed)


@pytest.mark.parametrize(
    ("peers", "pythons", "message"),
    [
        (["llama"], [], "not known: use transformers"),
        (["vllm:{"], [], "not JSON"),
        (["vllm:[1]"], [], "must be a JSON object"),
        (['transformers:{"prompt_lookup_num_tokens": -5}'], [], "is -5: .* at least 1"),
        (['transformers:{"prompt_lookup_num_tokens": true}'], [], "is True: .* at least 1"),
        (["vllm", "vllm"], [], "asked for twice"),
        (["vllm"], ["vllm"], "NAME=PATH"),
        (["vllm"], ["vllm=/no/such/python"], "is no program"),
        (["vllm"], [f"transformers={sys.executable}"], "there is no --peer transformers"),
    ],
)
def test_wrong_options_are_named(peers: list[str], pythons: list[str], message: str) -> None:
    with pytest.raises(WorkerInputError, match=message):
        parse_peers(peers, pythons)


def test_a_label_names_the_settings_without_folders() -> None:
    [plain, tuned] = parse_peers(
        ["vllm", 'vllm:{"model": "/a/b/m.gguf", "speculative_config": {"method": "ngram"}}'], []
    )
    assert (plain.label, plain.python) == ("vllm", sys.executable)
    assert tuned.label == "vllm model=m.gguf speculative_config={method: ngram}"
