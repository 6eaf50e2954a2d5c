"""Tokenizers with the tokens of several model families, and the families' published templates."""

from importlib import resources
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from extensions.demo.tokenizer import byte_tokenizer
from pipelinerl.conversations.template import TemplateConversations

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>"]
SPECIAL += ["<|image_pad|>", "<|video_pad|>", "[gMASK]", "<sop>", "<|observation|>"]
MARKUP = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
MARKUP += ["<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"]


def published(name: str) -> str:
    """Returns a published chat template."""
    return resources.files("trl").joinpath("chat_templates", f"{name}.jinja").read_text()


CHAT_ML = published("qwen3")


def family_tokenizer(template: str, end: str = "<|end|>") -> PreTrainedTokenizerBase:
    """Returns a tokenizer with the tokens of all families. end: the token that ends an answer."""
    tokenizer = byte_tokenizer(4096)
    tokenizer.add_tokens(SPECIAL, special_tokens=True)
    tokenizer.add_tokens(MARKUP)
    tokenizer.chat_template = template
    tokenizer.eos_token = end
    return tokenizer


def template_of(name: str, directory: Path, **options) -> TemplateConversations:
    """Returns the conversations of a published template. The directory gets its tokenizer and end tokens."""
    ends = ["<|user|>", "<|observation|>"] if "glm" in name else ["<|im_end|>", "<|endoftext|>"]
    tokenizer = family_tokenizer(published(name), ends[0])
    tokenizer.save_pretrained(directory)
    ids = tokenizer.convert_tokens_to_ids(ends)
    (directory / "generation_config.json").write_text(f'{{"eos_token_id": {ids}}}')
    return TemplateConversations(str(directory), tokenizer, **options)
