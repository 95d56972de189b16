"""A small model with an early-exit loss, trained in about a CPU minute, and prompts for it.

The language and the model are made so that each tuned knob has its optimum strictly inside its
range, for a reason that can be named:

- A text tells of one subject after the other, each in a phrase of five tokens:
  ``subject phrase[0] ... phrase[4] subject' ...``. The style, told once before, and the subject
  choose the phrase; subject ``s`` is followed by ``s + 1``, and several share a phrase.
- *Exit layer.* The first layer attends to the last three positions only, so after it the next
  subject cannot be known; after the second it can. The exit loss (LayerSkip, Elhoushi et al. 2024:
  cross-entropy through the shared norm and head, one exit a step in rotation) begins at layer 2.
- *Block size.* Exits learn phrases of a style drawn anew, so that they do not know the style: of a
  phrase's first token they guess one in four right, and of the five tokens after it all. A block of
  five drafts these, a longer one drafts past the next guess.
- *Draft vocabulary.* Only ``NUM_SPOKEN`` of the 8192 token ids, scattered over the range, are ever
  an answer; the others are noise before the text.

Losses score the spoken ids and a sample of the others (sampled softmax), for speed.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional
from transformers import Qwen3Config, Qwen3ForCausalLM

from tests.support.tinymodels import BOS, EOS, tiny_tokenizer

VOCAB_SIZE = 8192
NUM_LAYERS = 7
FIRST_EXIT = 2
PERIOD = 6  # a subject and its phrase
NUM_SUBJECTS = 64
NUM_STYLES = 4
PHRASES_OF_STYLE = 9
NUM_SPOKEN = NUM_SUBJECTS + NUM_STYLES * PHRASES_OF_STYLE * (PERIOD - 1)
NUM_BEFORE = 8  # tokens before a text: noise, then its style

_SEED = 0
_FIRST_ID = 300  # ids below stand for the tokenizer's characters
_EXITS = (FIRST_EXIT, 4, FIRST_EXIT, 5)  # in rotation
_EXIT_WEIGHT = 0.7
_NUM_STEPS = 100
_BATCH = 8
_TEXT_TOKENS = 100
_NUM_NEGATIVES = 256
_PEAK_RATE = 3e-3
_WARM_STEPS = 20
_NUM_PROMPTS = 48  # so many that those to tune on hold every phrase

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Text:
    """``tokens`` as read; ``guesses`` is the same with the first token of every phrase taken from a
    style drawn anew for it: what the exits learn.
    """

    tokens: list[int]
    guesses: list[int]


class Language:
    """Token ids of ``subjects`` ``[S]``, ``phrases`` ``[styles, P, 5]``, ``styles`` ``[styles]``;
    all others from ``_FIRST_ID`` on are ``noise``. ``phrase_of`` ``[S]`` is a subject's phrase.
    """

    def __init__(self, seed: int) -> None:
        draw = np.random.default_rng(seed)
        ids = draw.permutation(np.arange(_FIRST_ID, VOCAB_SIZE))
        self.subjects: Ints = ids[:NUM_SUBJECTS]
        self.phrases: Ints = ids[NUM_SUBJECTS:NUM_SPOKEN].reshape(
            NUM_STYLES, PHRASES_OF_STYLE, PERIOD - 1
        )
        self.styles: Ints = ids[NUM_SPOKEN : NUM_SPOKEN + NUM_STYLES]
        self.noise: Ints = ids[NUM_SPOKEN + NUM_STYLES :]
        self.spoken: Ints = np.sort(ids[:NUM_SPOKEN])
        self.phrase_of: Ints = draw.integers(PHRASES_OF_STYLE, size=NUM_SUBJECTS)

    def text(self, draw: np.random.Generator, subject: int, style: int, num_tokens: int) -> Text:
        """``NUM_BEFORE`` tokens and then ``num_tokens`` from ``subject`` on."""
        tokens = [*draw.choice(self.noise, NUM_BEFORE - 1, replace=False), self.styles[style]]
        guesses = list(tokens)
        while len(tokens) < NUM_BEFORE + num_tokens:
            phrases = self.phrases[:, self.phrase_of[subject]]
            guess = phrases[draw.integers(NUM_STYLES)][0]
            tokens.extend([self.subjects[subject], *phrases[style]])
            guesses.extend([self.subjects[subject], guess, *phrases[style][1:]])
            subject = (subject + 1) % NUM_SUBJECTS
        end = NUM_BEFORE + num_tokens
        return Text([int(token) for token in tokens[:end]], [int(g) for g in guesses[:end]])


def train() -> Qwen3ForCausalLM:
    """The trained model, in fp32; the same on every call on one machine."""
    language = Language(_SEED)
    draw = np.random.default_rng(_SEED + 1)
    with torch.random.fork_rng():
        torch.manual_seed(_SEED)
        model = Qwen3ForCausalLM(_config())
    model.train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=_PEAK_RATE, betas=(0.9, 0.98), weight_decay=0.01
    )
    for step in range(_NUM_STEPS):
        for group in optimizer.param_groups:
            group["lr"] = _PEAK_RATE * _rate(step)
        loss = _loss(model, language, draw, _EXITS[step % len(_EXITS)])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return model.eval()


def trained_checkpoint(cache: Path) -> Path:
    """A checkpoint folder with the model, a tokenizer and ``prompts.jsonl``, kept under ``cache``
    by the content of this file, so that only a change of it trains again.
    """
    digest = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:16]
    folder = cache / f"trained-{digest}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix="training-", dir=cache))
    try:
        train().save_pretrained(partial)
        tiny_tokenizer(VOCAB_SIZE).save_pretrained(partial)
        _write_prompts(partial / "prompts.jsonl")
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def _write_prompts(path: Path) -> None:
    """Prompts as token ids: what precedes a text, a subject with its phrase, and the next subject.
    Styles take turns, the first subjects are spread over all.
    """
    language = Language(_SEED)
    draw = np.random.default_rng(_SEED + 2)
    lines = []
    for index in range(_NUM_PROMPTS):
        subject = index * NUM_SUBJECTS // _NUM_PROMPTS
        text = language.text(draw, subject, index % NUM_STYLES, PERIOD + 1)
        lines.append(json.dumps({"id": f"text-{index}", "prompt_ids": text.tokens}))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _config() -> Qwen3Config:
    return Qwen3Config(
        vocab_size=VOCAB_SIZE,
        hidden_size=384,
        intermediate_size=256,
        num_hidden_layers=NUM_LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        use_sliding_window=True,
        sliding_window=3,
        layer_types=["sliding_attention"] + ["full_attention"] * (NUM_LAYERS - 1),
        tie_word_embeddings=True,
        bos_token_id=BOS,
        eos_token_id=EOS,
        pad_token_id=EOS,
    )


def _rate(step: int) -> float:
    """Share of the peak learning rate: linear warm-up, then a linear fall over the last third."""
    return min(1.0, (step + 1) / _WARM_STEPS, 0.02 + (_NUM_STEPS - step) / (0.33 * _NUM_STEPS))


def _loss(
    model: Qwen3ForCausalLM, language: Language, draw: np.random.Generator, exit_layer: int
) -> torch.Tensor:
    texts = [
        language.text(
            draw, int(draw.integers(NUM_SUBJECTS)), int(draw.integers(NUM_STYLES)), _TEXT_TOKENS
        )
        for _ in range(_BATCH)
    ]
    negatives = draw.choice(language.noise, _NUM_NEGATIVES, replace=False)
    scored = torch.from_numpy(np.concatenate([language.spoken, negatives]))
    weight = model.lm_head.weight[scored]

    def cross_entropy(hidden: torch.Tensor, truth: list[list[int]]) -> torch.Tensor:
        columns = np.searchsorted(language.spoken, np.array(truth)[:, NUM_BEFORE + 1 :])
        logits = hidden[:, NUM_BEFORE:-1] @ weight.T
        return functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(columns).flatten())

    tokens = [text.tokens for text in texts]
    states = model.model(torch.tensor(tokens), output_hidden_states=True).hidden_states
    early = model.model.norm(states[exit_layer])
    late_loss = cross_entropy(states[-1], tokens)
    return late_loss + _EXIT_WEIGHT * cross_entropy(early, [text.guesses for text in texts])
