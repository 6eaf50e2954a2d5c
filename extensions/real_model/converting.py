"""Converts a GGUF file of a Llama into a Hugging Face directory, in float32.

Transformers reads the file, by the package gguf. What it does not take from it is added here: the tokenizer's
digits and its special tokens.
"""

from pathlib import Path

import torch
from tokenizers import AddedToken, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

CONTROL = 3  # token type of GGUF: a special token
DIGITS_APART = "smollm"  # pre-tokenizer of GGUF: each digit is a token of its own
OF_GGUF = ("quantization_config", "_name_or_path", "_model_name_or_path")  # of the configuration


def convert(gguf: Path, directory: Path) -> None:
    """Writes weights, configuration, tokenizer and chat template into `directory`, which exists."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        tokenizer = _tokenizer(gguf)
        tokenizer.save_pretrained(directory)
        _model(gguf, tokenizer).save_pretrained(directory)
    finally:
        if shown:
            logging.enable_progress_bar()


def _model(gguf: Path, tokenizer: PreTrainedTokenizerBase) -> LlamaForCausalLM:
    read = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype=torch.float32)
    kept = {key: value for key, value in read.config.to_dict().items() if key not in OF_GGUF}
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**kept))
    model.load_state_dict(read.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    return model


def _tokenizer(gguf: Path) -> PreTrainedTokenizerBase:
    from gguf import GGUFReader

    fields = GGUFReader(gguf).fields
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    if fields["tokenizer.ggml.pre"].contents() == DIGITS_APART:
        digits = pre_tokenizers.Digits(individual_digits=True)
        bytes_of_words = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, bytes_of_words])
    types = fields["tokenizer.ggml.token_type"].contents()
    tokens = fields["tokenizer.ggml.tokens"].contents()
    special = [token for token, kind in zip(tokens, types, strict=True) if kind == CONTROL]
    tokenizer.add_tokens(
        [AddedToken(token, special=True, normalized=False) for token in special], special_tokens=True
    )
    tokenizer.model_max_length = fields["llama.context_length"].contents()
    return tokenizer
