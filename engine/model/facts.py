"""What planning needs to know of a checkpoint, read from its configuration alone: no weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from transformers import AutoConfig

from draftsmith.engine.errors import EngineInputError, reason_of
from draftsmith.engine.model.config import decoder_families, stated_positions
from draftsmith.engine.model.config_file import read_config
from draftsmith.engine.model.gguf_file import quiet_transformers
from draftsmith.engine.model.locating import locate


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """``layer_subsets``: the engine's own decoder runs it, so layers can be left out while
    drafting. ``max_positions`` is None where the configuration does not say; loading such a model
    refuses it.
    """

    source_path: Path
    family: str
    num_layers: int
    vocab_size: int
    max_positions: int | None
    layer_subsets: bool


def read_facts(name: str) -> ModelFacts:
    """Facts of the model that ``name`` means (as ``load_target`` takes it). Raises EngineInputError
    when there is no readable configuration, and whatever ``locate`` raises.
    """
    path = locate(name)
    try:
        with quiet_transformers():
            if path.is_file():
                config = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
            else:
                config = read_config(path)
        text = config.get_text_config()
        num_layers, vocab_size = int(text.num_hidden_layers), int(text.vocab_size)
        positions = stated_positions(text)
    except EngineInputError:
        raise
    except Exception as error:  # transformers raises bare ones for values it does not expect
        raise EngineInputError(
            f"{path} has no configuration that can be read ({reason_of(error)}); give the folder"
            " that holds config.json, the tokenizer and the weights"
        ) from error
    if min(num_layers, vocab_size) < 1:
        raise EngineInputError(
            f"the configuration of {path} says {num_layers} layers and {vocab_size} token ids;"
            " at least 1 of each is needed"
        )
    family = str(text.model_type)
    return ModelFacts(
        source_path=path,
        family=family,
        num_layers=num_layers,
        vocab_size=vocab_size,
        max_positions=positions,
        layer_subsets=family in decoder_families(),
    )
