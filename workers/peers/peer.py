"""A peer that takes its turns in a timed run: loaded once, asked in turns, stopped in between."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from draftsmith.engine.types import Request
from draftsmith.workers.errors import WorkerInputError
from draftsmith.workers.peers.catalogue import PeerSpec
from draftsmith.workers.peers.process import PeerError, PeerProcess
from draftsmith.workers.timed_run import RivalOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLoad:
    """What every peer is to load. ``context``: positions that a request may need, prompt, output
    and what is drafted beyond it. Timeouts are seconds for one answer.
    """

    model: str
    dtype: str
    device: str
    threads: int
    context: int
    concurrency: int
    timeout_s: float = 600.0


class Peer:
    """One engine, ready or not: ``failure`` says in words why it takes no part (any more)."""

    def __init__(self, spec: PeerSpec, load: PeerLoad) -> None:
        self.spec = spec
        self.failure = ""
        self.versions: dict[str, str] = {}
        self.note = ""
        self._timeout_s = load.timeout_s
        self._process: PeerProcess | None = None
        try:
            self._process = PeerProcess(spec.label, spec.command, environment=_environment(load))
            answer = self._process.ask(
                {
                    "op": "load",
                    "model": load.model,
                    "dtype": load.dtype,
                    "device": load.device,
                    "threads": load.threads,
                    "context": load.context,
                    "concurrency": load.concurrency,
                    "settings": dict(spec.settings),
                },
                load.timeout_s,
            )
            if "absent" in answer:
                self.failure = f"not installed: {', '.join(answer['absent'])} (see --peer-python)"
                self.close()
                return
            self.versions = {str(k): str(v) for k, v in answer.get("versions", {}).items()}
            self.note = str(answer.get("note", ""))
            self._process.pause()
        except PeerError as error:
            self.failure = str(error)
        except BaseException:
            self.close(at_once=True)
            raise

    @property
    def process(self) -> PeerProcess | None:
        return self._process

    def run(self, requests: Sequence[Request], stop_ids: Sequence[int]) -> RivalOutput | None:
        """Greedy outputs of ``requests``, which all ask for the same number of tokens; None once it
        has failed.
        """
        if self.failure or self._process is None:
            return None
        (max_tokens,) = {request.sampling.max_tokens for request in requests}
        self._process.resume()
        try:
            answer = self._process.ask(
                {
                    "op": "generate",
                    "prompts": [list(request.prompt_ids) for request in requests],
                    "max_tokens": max_tokens,
                    "stop_ids": list(stop_ids),
                },
                self._timeout_s,
            )
            output = _output(answer, len(requests))
        except PeerError as error:
            self.failure = str(error)
            return None
        except (KeyError, TypeError, ValueError) as error:
            self.failure = f"peer {self.spec.label} answered without sense: {error!r}"
            self.close(at_once=True)
            return None
        self._process.pause()
        return output

    def close(self, *, at_once: bool = False) -> None:
        if self._process is not None:
            self._process.close(at_once=at_once)


@contextmanager
def open_peers(
    specs: Iterable[PeerSpec], load: PeerLoad, on_loaded: Callable[[Peer], None] = lambda _: None
) -> Iterator[dict[str, Peer]]:
    """Every peer by its label, loaded one after the other and stopped; all gone after the block.
    ``on_loaded`` is called after each, loaded or failed.
    """
    with ExitStack() as stack:
        peers: dict[str, Peer] = {}
        for spec in specs:
            peers[spec.label] = Peer(spec, load)
            stack.callback(peers[spec.label].close)
            on_loaded(peers[spec.label])
        yield peers


def check_comparable(requests: Sequence[Request]) -> None:
    """WorkerInputError unless a peer can be asked the same: plain greedy decoding of one length."""
    for request in requests:
        asked = request.sampling
        plain = (asked.temperature, asked.repetition_penalty, asked.presence_penalty)
        if plain != (0.0, 1.0, 0.0) or asked.frequency_penalty or asked.min_tokens:
            raise WorkerInputError(
                f"request {request.request_id} has temperature {asked.temperature:g} or a penalty "
                "or min_tokens: peers are compared on plain greedy decoding; leave those flags out"
            )
        if asked.stop_strings:
            raise WorkerInputError(
                f"request {request.request_id} has stop strings: peers stop at tokens only"
            )
        if asked.max_tokens != requests[0].sampling.max_tokens:
            raise WorkerInputError(
                f"request {request.request_id} asks for {asked.max_tokens} tokens, the first for "
                f"{requests[0].sampling.max_tokens}: peers are compared at one length"
            )


def _output(answer: dict[str, Any], count: int) -> RivalOutput:
    outputs = tuple(tuple(int(token) for token in one) for one in answer["outputs"])
    if len(outputs) != count or not all(outputs):
        raise ValueError(f"{len(outputs)} outputs for {count} prompts, or an empty one")
    seconds, prefill_s = float(answer["seconds"]), answer["prefill_s"]
    if not seconds > 0.0:
        raise ValueError(f"it took {seconds} s")
    return RivalOutput(outputs, seconds, None if prefill_s is None else float(prefill_s))


def _environment(load: PeerLoad) -> dict[str, str]:
    """Threads as ours, and nothing from a network in the middle of a measurement."""
    threads = str(load.threads)
    return {
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
    }
