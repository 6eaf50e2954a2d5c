"""Reads end-of-sequence ids and the tokenizer from a model directory."""

from transformers import (
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)


def end_of_sequence(path: str, config: PreTrainedConfig) -> list[int]:
    """Returns the end-of-sequence ids, from generation_config.json if it has any, as servers do."""
    try:
        ends = GenerationConfig.from_pretrained(path).eos_token_id
    except OSError:
        ends = None
    ends = config.get_text_config().eos_token_id if ends is None else ends
    return [ends] if isinstance(ends, int) else list(ends or [])


def tokenizer_of(path: str, trust_remote_code: bool) -> PreTrainedTokenizerBase | None:
    """Returns the directory's tokenizer, or None if it has none."""
    try:
        return AutoTokenizer.from_pretrained(path, trust_remote_code=trust_remote_code)
    except (OSError, ValueError):
        return None
