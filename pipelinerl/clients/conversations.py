"""Builds what converts between a model's messages and tokens, from the configuration."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from contracts.tool_templates import knows_tools
from pipelinerl.components import instantiate
from pipelinerl.config import ModelConfig
from pipelinerl.conversations.base import Conversations
from pipelinerl.conversations.special_text import special_texts
from pipelinerl.conversations.template import TemplateConversations
from pipelinerl.errors import PlanError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CHANNELS = {"<|channel|>", "<|channel>"}  # special tokens of families whose thoughts are in channels


def build_conversations(
    model: ModelConfig,
    with_tools: bool,
    path: str | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> Conversations:
    """Returns the conversations of a model: by its own template, or by the renderer that the run names.

    `auto` is the template, unless the domain needs tools and the template's calls are not Hermes', or its
    thoughts are in channels. Raises PlanError or ValueError if no renderer suits a domain with tools.

    path, tokenizer: of the model; by default, the tokenizer is loaded from `model.path` at first use.
    """
    keeps = {"keeps_thoughts": model.old_thoughts == "keep"}
    template = TemplateConversations(path or str(model.path), tokenizer, **keeps)
    if model.renderer == "template" or (model.renderers is None and model.renderer == "auto"):
        return template
    if model.renderers is None:
        raise PlanError(f"model.renderer={model.renderer} needs model.renderers, which is null")
    if model.renderer == "auto" and _suits(template, with_tools):
        return template
    options = {"template": template, "options": model.template or {}, "with_tools": with_tools, **keeps}
    if model.renderer != "auto":
        return instantiate(model.renderers, name=model.renderer, **options)
    try:
        return instantiate(model.renderers, name=None, **options)
    except (PlanError, ValueError):
        if with_tools:
            raise
        return template


def _suits(template: TemplateConversations, with_tools: bool) -> bool:
    if not with_tools:
        return not CHANNELS.intersection(special_texts(Path(template.path)) or [])
    return knows_tools(template.renderer.tokenizer)
