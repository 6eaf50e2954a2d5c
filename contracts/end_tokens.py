"""Collects the end-of-sequence tokens that the parts of a model directory name.

Tokenizer, chat template, generation_config.json and config.json often differ, for example in a base model
with a chat template added. Each engine reads other parts by default; with this module all stop at the same
tokens.
"""

from pathlib import Path
from typing import Any

QUESTION = [{"role": "user", "content": "question"}]
MARK = "\ue000an answer\ue000"


def end_tokens_in(directory: str, tokenizer: Any) -> list[int]:
    """Returns the end-of-sequence ids of the model in `directory`. `tokenizer` is its tokenizer."""
    from transformers import AutoConfig, GenerationConfig  # only servers and the launcher need it

    configs = []
    if Path(directory, "config.json").is_file():
        config = AutoConfig.from_pretrained(directory)
        configs += [config, config.get_text_config()]
    if Path(directory, "generation_config.json").is_file():
        configs.append(GenerationConfig.from_pretrained(directory))
    return end_token_ids(tokenizer, *configs)


def end_token_ids(tokenizer: Any, *configs: Any) -> list[int]:
    """Returns the ids that the tokenizer, its chat template and the configurations name, in this order."""
    ends = dict.fromkeys(_named(tokenizer))
    ends |= dict.fromkeys(turn_end_ids(tokenizer))
    for config in configs:
        ends |= dict.fromkeys(_named(config))
    return list(ends)


def turn_end_ids(tokenizer: Any) -> list[int]:
    """Returns the special token that the chat template writes after an answer: a list of one id, or empty."""
    try:
        text = tokenizer.apply_chat_template(
            [*QUESTION, {"role": "assistant", "content": MARK}], tokenize=False
        )
    except Exception:  # templates raise arbitrary errors for conversations that they refuse
        return []
    _, answered, after = text.rpartition(MARK)
    special = special_ids(tokenizer) if answered else ()
    ids = tokenizer(after, add_special_tokens=False)["input_ids"]
    return [token_id for token_id in ids if token_id in special][:1]


def special_ids(tokenizer: Any) -> frozenset[int]:
    """Returns the ids of the special tokens, those added to the tokenizer included."""
    added = getattr(tokenizer, "added_tokens_decoder", {})  # tokenizers implemented by vLLM lack it
    return frozenset(tokenizer.all_special_ids) | {i for i, token in added.items() if token.special}


def _named(part: Any) -> list[int]:
    ends = getattr(part, "eos_token_id", None)
    return list(ends) if isinstance(ends, list | tuple) else [] if ends is None else [ends]
