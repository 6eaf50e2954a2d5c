"""Makes a tiny Hugging Face model directory: random weights, one token per character.

`python -m contracts.conformance model DIR` writes one, and the trainer's kit makes several.
"""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
VOCABULARY = {"<eos>": 0, "<pad>": 1} | {character: i + 2 for i, character in enumerate(CHARACTERS)}
TEMPLATE = (
    "{% if tools %}{{ 'tools: ' ~ (tools | tojson) ~ '\\n' }}{% endif %}"
    "{% for m in messages %}{{ m['role'] ~ ': ' ~ (m['content'] or '') }}"
    "{% for c in m['tool_calls'] or [] %}<tool_call>{{ c['function'] | tojson }}</tool_call>{% endfor %}"
    "{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)


def make_tiny_model(
    path: Path, tied: bool = True, context: int = 2048, vocabulary: int = len(VOCABULARY)
) -> str:
    """Writes a tied Qwen2 with attention biases, or an untied Llama. Returns its path."""
    torch.manual_seed(0)
    model_class, config_class = (Qwen2ForCausalLM, Qwen2Config) if tied else (LlamaForCausalLM, LlamaConfig)
    config = config_class(
        vocab_size=vocabulary,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,  # heads of size 32, because engines do not support smaller ones
        num_key_value_heads=1,
        max_position_embeddings=context,
        tie_word_embeddings=tied,
        initializer_range=0.2,  # large enough that distributions are far from uniform
        eos_token_id=0,
        pad_token_id=1,
        bos_token_id=None,
    )
    model_class(config).save_pretrained(path)
    character_tokenizer().save_pretrained(path)
    return str(path)


def make_scaled_model(path: Path) -> str:
    """Writes a Granite, which divides its logits by 4 after the head, and returns its path."""
    torch.manual_seed(0)
    config = GraniteConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        initializer_range=0.2,
        logits_scaling=4.0,
        eos_token_id=0,
        pad_token_id=1,
        bos_token_id=None,
    )
    GraniteForCausalLM(config).save_pretrained(path)
    character_tokenizer().save_pretrained(path)
    return str(path)


def character_tokenizer(size: int = len(VOCABULARY)) -> PreTrainedTokenizerFast:
    """Returns a tokenizer of characters. Its other ids, up to `size`, occur in no text."""
    fillers = {f"<{i}>": i for i in range(len(VOCABULARY), size)}
    tokenizer = Tokenizer(models.WordLevel(VOCABULARY | fillers, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>")
    fast.chat_template = TEMPLATE
    return fast
