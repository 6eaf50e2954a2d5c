"""Refuses models that an update cannot replace completely, before an engine loads them.

An update sends the trainer's tensors. These do not include scales of quantised weights and weights of a
speculative draft model, which would silently stay those of the first version.
"""

from collections.abc import Mapping
from typing import Any

from transformers import PreTrainedConfig
from transformers.utils import cached_file

QUANTISED = ("quantization_config", "compression_config")  # entries of config.json
QUANTISED_FILES = ("hf_quant_config.json", "quantize_config.json", "quant_config.json")
DRAFTING = "speculators_config"  # entry of the config.json of a draft model
# Reasons why an engine's options cannot be set:
DRAFTS = "an update would not reach the weights of what drafts"
SCALES = "an update does not send the scales of quantised values"


def check_plain_weights(
    model: str, revision: str | None = None, overrides: Mapping[str, Any] | None = None
) -> None:
    """Raises ValueError, with a one-line message, if the model is quantised or a draft model.

    overrides: entries that replace those of its config.json.
    """
    config, _ = PreTrainedConfig.get_config_dict(model, revision=revision)
    config = config | dict(overrides or {})
    if config.get(DRAFTING):
        raise ValueError(
            f"{model} drafts for another model ({DRAFTING}): an update would not reach what drafts; "
            "serve the other model alone"
        )
    if where := _quantised(config) or _file_of_scales(model, revision):
        raise ValueError(
            f"{model} is quantised ({where}): an update does not send scales; serve the model that it was "
            "made from"
        )


def _quantised(config: Mapping[str, Any], path: str = "config.json") -> str | None:
    """Returns the path of an entry that quantises the model or a part of it, such as the text model."""
    for name, value in config.items():
        if name in QUANTISED and value:
            return f"{path}: {name}"
        if isinstance(value, Mapping) and (found := _quantised(value, f"{path}: {name}")):
            return found
    return None


def _file_of_scales(model: str, revision: str | None) -> str | None:
    for name in QUANTISED_FILES:
        if cached_file(model, name, revision=revision, _raise_exceptions_for_missing_entries=False):
            return name
    return None
