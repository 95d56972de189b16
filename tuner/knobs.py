"""The search space as data: every knob with its type, range, default, unit and condition.

CLI help, docs, validation and the samplers' distributions come from ``KNOBS``; the ``scripted``
drafter and its knobs are for tests and cost studies, and no user's values. A knob is read when
the drafter and the tree shape are among its own and the knob named by ``unless`` is not set.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from draftsmith.engine.drafters.registry import MATCHERS
from draftsmith.engine.types import SpecConfig, TreeShape

Kind = Literal["choice", "int", "float", "ints", "text"]

WITH_HEAD = ("early_exit", "draft_model")
TREES_OF: dict[str, tuple[TreeShape, ...]] = {  # shapes that each drafter draws; others: chains
    "suffix": ("chain", "dynamic"),
    "recycle": ("chain", "static"),
    "early_exit": ("chain", "static", "dynamic"),
    "draft_model": ("chain", "static", "dynamic"),
}
STATIC = tuple(name for name, shapes in TREES_OF.items() if "static" in shapes)
DYNAMIC = tuple(name for name, shapes in TREES_OF.items() if "dynamic" in shapes)
SEARCHED = ("ngram", "suffix", "recycle", "early_exit", "draft_model")
DRAFTERS = ("none", *SEARCHED, "scripted")
TREES = ("chain", "static", "dynamic")
FIXABLE = (  # knobs that a deployment may hold at one value
    "block_size",
    "tree",
    "tree_budget",
    "exit_layer",
    "skip_layers",
    "draft_vocab",
    "stop_threshold",
    "draft_budget",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One field of SpecConfig. ``low`` and ``high`` are inclusive; ``high`` None depends on the
    model (``high_text`` says how). ``high_for`` overrides ``high`` for some drafters.
    """

    name: str
    kind: Kind
    help: str
    unit: str = ""
    low: float = -math.inf
    high: float | None = math.inf
    high_text: str = ""
    high_for: Mapping[str, float] | None = None
    choices: tuple[str, ...] = ()
    drafters: tuple[str, ...] = (*SEARCHED, "scripted")
    trees: tuple[str, ...] = TREES
    unless: str | None = None

    @property
    def readers(self) -> tuple[str, ...]:
        """Drafters of the user's that read it; none for what tests alone set."""
        return tuple(name for name in self.drafters if name != "scripted")

    @property
    def default(self) -> Any:
        return getattr(SpecConfig(), self.name)


KNOBS: dict[str, Knob] = {
    knob.name: knob
    for knob in (
        Knob(
            name="drafter",
            kind="choice",
            choices=("none", *SEARCHED),
            drafters=DRAFTERS,
            help="who proposes tokens; none is speculation off",
        ),
        Knob(
            name="block_size",
            kind="int",
            low=1,
            high=16,
            high_for={"suffix": 64},
            unit="tokens",
            unless="branching",
            help="draft tokens along one path (the depth of a tree)",
        ),
        Knob(
            name="tree",
            kind="choice",
            choices=TREES,
            drafters=tuple(TREES_OF),
            help="shape of the draft: chain, static (fixed template) or dynamic (best first)",
        ),
        Knob(
            name="branching",
            kind="ints",
            low=1,
            high=16,
            unit="children",
            drafters=STATIC,
            trees=("static",),
            help="children per node by depth; empty lets the dynamic programme choose",
        ),
        Knob(
            name="tree_budget",
            kind="int",
            low=2,
            high=256,
            unit="nodes",
            drafters=tuple(TREES_OF),
            trees=("static", "dynamic"),
            unless="branching",
            help="draft nodes of a tree, root excluded",
        ),
        Knob(
            name="tree_top_k",
            kind="int",
            low=1,
            high=16,
            unit="children",
            drafters=DYNAMIC,
            trees=("dynamic",),
            help="children ranked per node",
        ),
        Knob(
            name="exit_layer",
            kind="int",
            low=1,
            high=None,
            high_text="layers - 1",
            unit="layers",
            drafters=("early_exit",),
            unless="skip_layers",
            help="layers run before the target leaves to propose",
        ),
        Knob(
            name="skip_layers",
            kind="ints",
            low=0,
            high=None,
            high_text="layers - 1",
            unit="layer indices",
            drafters=("early_exit",),
            help="layers left out while drafting, instead of a cut at exit_layer",
        ),
        Knob(
            name="draft_vocab",
            kind="int",
            low=1,
            high=None,
            high_text="vocabulary",
            unit="token ids",
            drafters=WITH_HEAD,
            help="rows of the draft head, by frequency on the workload; unset is all",
        ),
        Knob(
            name="stop_threshold",
            kind="float",
            low=0,
            high=1,
            unit="probability",
            drafters=WITH_HEAD,
            help="stop drafting after a token less probable than this",
        ),
        Knob(
            name="match_min",
            kind="int",
            low=1,
            high=64,
            unit="tokens",
            drafters=MATCHERS,
            help="shortest match that proposes",
        ),
        Knob(
            name="match_max",
            kind="int",
            low=1,
            high=64,
            unit="tokens",
            drafters=MATCHERS,
            help="longest match tried (ngram), depth cap (suffix)",
        ),
        Knob(
            name="spec_factor",
            kind="float",
            low=0.01,
            high=16,
            unit="tokens per matched token",
            drafters=("suffix",),
            help="drafted tokens per matched token",
        ),
        Knob(
            name="min_token_prob",
            kind="float",
            low=0,
            high=1,
            unit="probability",
            drafters=("suffix",),
            help="least path probability by counts",
        ),
        Knob(
            name="recycle_k",
            kind="int",
            low=1,
            high=32,
            unit="tokens",
            drafters=("recycle",),
            help="successors kept per token",
        ),
        Knob(
            name="fallback_size",
            kind="int",
            low=0,
            high=8,
            unit="tokens",
            drafters=MATCHERS,
            help="drafts shorter than this are filled up by token recycling; 0 is none",
        ),
        Knob(
            name="draft_model",
            kind="text",
            drafters=("draft_model",),
            help="folder of the drafting model's checkpoint",
        ),
        Knob(
            name="verifier",
            kind="choice",
            choices=("coupled", "rejection", "block"),
            help="at T > 0: coupled is token-exact, the others exact in distribution",
        ),
        Knob(
            name="draft_budget",
            kind="choice",
            choices=("fixed", "gain"),
            help="fixed: draft as much as block and tree allow; gain: as much as pays right now",
        ),
        Knob(
            name="accept_p",
            kind="float",
            low=0,
            high=1,
            unit="probability",
            drafters=("scripted",),
            help="scripted: probability of a right token",
        ),
        Knob(
            name="script",
            kind="choice",
            choices=("oracle", "wrong", "mixed", "random"),
            drafters=("scripted",),
            help="scripted: what is proposed",
        ),
        Knob(
            name="script_right",
            kind="int",
            low=0,
            high=64,
            unit="tokens",
            drafters=("scripted",),
            help="scripted mixed: right tokens before the wrong one",
        ),
    )
}
OPEN = {name: knob for name, knob in KNOBS.items() if knob.readers}  # what a user may set


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceFacts:
    """What the ranges depend on. ``num_ranked`` token ids are ranked for the draft vocabulary (0:
    the knob is not searched); ``layer_subsets`` says whether the model can run some of its layers.
    ``fixed`` knobs (of ``FIXABLE``) are held at one value instead of being searched.
    """

    num_layers: int
    vocab_size: int
    families: tuple[str, ...]
    layer_subsets: bool = True
    num_ranked: int = 0
    draft_model: str | None = None
    concurrency: int = 1
    temperature: float = 0.0
    fixed: Mapping[str, Any] = field(default_factory=dict)

    @property
    def searched(self) -> tuple[str, ...]:
        """Families that this model and this deployment allow."""
        allowed = []
        for family in self.families:
            if family == "early_exit" and (not self.layer_subsets or self.num_layers < 2):
                continue
            if family == "draft_model" and self.draft_model is None:
                continue
            allowed.append(family)
        return tuple(allowed)


def is_read(knob: Knob, config: SpecConfig) -> bool:
    """Whether ``config``'s drafter and tree read the knob."""
    if config.drafter not in knob.drafters:
        return False
    tree = config.tree if config.drafter in TREES_OF else "chain"
    if tree not in knob.trees:
        return False
    if knob.unless == "branching":
        return not (config.branching and tree == "static")
    return knob.unless is None or not getattr(config, knob.unless)


def high_limit(knob: Knob, drafter: str, facts: SpaceFacts | None) -> float:
    """The largest value of a numeric knob for this drafter and model."""
    if knob.high is None:
        if facts is None:
            return math.inf
        return facts.vocab_size if knob.name == "draft_vocab" else facts.num_layers - 1
    return (knob.high_for or {}).get(drafter, knob.high)
