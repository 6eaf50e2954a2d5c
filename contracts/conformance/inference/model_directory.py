"""Reads end-of-sequence ids and the tokenizer from a model directory."""

from transformers import (
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)

from contracts.end_tokens import end_token_ids


def end_of_sequence(
    path: str, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase | None
) -> list[int]:
    """Returns the end-of-sequence ids: those of generation_config.json or config.json, then the tokenizer's.

    All servers stop at the first id. They may also stop at the others.
    """
    try:
        ends = GenerationConfig.from_pretrained(path).eos_token_id
    except OSError:
        ends = None
    ends = config.get_text_config().eos_token_id if ends is None else ends
    named = [ends] if isinstance(ends, int) else list(ends or [])
    return list(dict.fromkeys([*named, *end_token_ids(tokenizer)])) if named else []


def tokenizer_of(path: str, trust_remote_code: bool) -> PreTrainedTokenizerBase | None:
    """Returns the directory's tokenizer, or None if it has none."""
    try:
        return AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
    except (OSError, ValueError):
        return None
