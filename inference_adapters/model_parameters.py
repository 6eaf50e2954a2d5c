"""Lists a model's weights by Hugging Face name, for engines that store them differently."""

from collections.abc import Mapping
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from contracts.causal_model import causal_config


def model_parameters(
    model: str,
    revision: str | None = None,
    trust_remote_code: bool = False,
    overrides: Mapping[str, Any] | None = None,
) -> tuple[dict[str, tuple[int, ...]], dict[str, str]]:
    """Returns the shapes of the weights of an update, and tied name -> sent name.

    The model is created on the meta device, without memory for its weights.
    """
    config = causal_config(model, revision=revision, trust_remote_code=trust_remote_code, **(overrides or {}))
    with torch.device("meta"):
        empty = AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    name_of = {id(p): name for name, p in empty.named_parameters()}
    every = empty.named_parameters(remove_duplicate=False)
    tied = {name: name_of[id(p)] for name, p in every if name != name_of[id(p)]}
    return {name: tuple(p.shape) for name, p in empty.named_parameters()}, tied
