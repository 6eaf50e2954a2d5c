"""Makes a tiny Hugging Face model directory: random weights, one token per character.

`python -m contracts.conformance model DIR --kind KIND` writes one, and the trainer's kit makes several.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GptOssConfig,
    GptOssForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3_5ForCausalLM,
    Qwen3_5TextConfig,
)

# Bytes as byte-level BPE names them: a line break is Ċ, a space Ġ.
CHARACTERS = "ĊĠ" + "".join(map(chr, range(33, 127)))
VOCABULARY = {"<eos>": 0, "<pad>": 1} | {character: i + 2 for i, character in enumerate(CHARACTERS)}
TEMPLATE = (
    "{% if enable_thinking is defined %}{{ 'thinking: ' ~ enable_thinking ~ '\\n' }}{% endif %}"
    "{% if tools %}{{ 'tools: ' ~ (tools | tojson) ~ '\\n' }}{% endif %}"
    "{% for m in messages %}{{ m['role'] ~ ': ' ~ (m['content'] or '') }}"
    "{% for c in m['tool_calls'] or [] %}<tool_call>{{ c['function'] | tojson }}</tool_call>{% endfor %}"
    "{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
SIZES: dict[str, Any] = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,  # heads of size 32, because engines do not support smaller ones
    "num_key_value_heads": 1,
    "max_position_embeddings": 2048,
    "initializer_range": 0.2,  # large enough that distributions are far from uniform
    "eos_token_id": 0,
    "pad_token_id": 1,
    "bos_token_id": None,
}


YARN = {  # as GPT-OSS has it, for half of SIZES' context
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 2.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 1024,
}


def make_tiny_model(
    path: Path, tied: bool = True, context: int = 2048, vocabulary: int = len(VOCABULARY)
) -> str:
    """Writes a tied Qwen2 with attention biases, or an untied Llama. Returns its path."""
    torch.manual_seed(0)
    model_class, config_class = (Qwen2ForCausalLM, Qwen2Config) if tied else (LlamaForCausalLM, LlamaConfig)
    sizes = SIZES | {"vocab_size": vocabulary, "max_position_embeddings": context}
    return _saved(model_class(config_class(**sizes, tie_word_embeddings=tied)), path)


def make_scaled_model(path: Path) -> str:
    """Writes a Granite, which divides its logits by 4 after the head, and returns its path."""
    torch.manual_seed(0)
    config = GraniteConfig(**SIZES, tie_word_embeddings=True, logits_scaling=4.0)
    return _saved(GraniteForCausalLM(config), path)


def make_hybrid_model(path: Path) -> str:
    """Writes a Qwen3.5 with a recurrent layer before one of attention, and returns its path."""
    torch.manual_seed(0)
    config = Qwen3_5TextConfig(
        **SIZES,
        head_dim=64,
        tie_word_embeddings=True,
        layer_types=["linear_attention", "full_attention"],
        linear_key_head_dim=64,  # the smallest that vLLM has on a CPU
        linear_value_head_dim=64,
        linear_num_key_heads=1,
        linear_num_value_heads=2,
    )
    return _saved(Qwen3_5ForCausalLM(config), path)


def make_sinks_model(path: Path) -> str:
    """Writes a GPT-OSS, which has a sink in each head, a window and experts, and returns its path."""
    torch.manual_seed(0)
    config = GptOssConfig(
        **SIZES,
        head_dim=32,
        tie_word_embeddings=False,
        layer_types=["sliding_attention", "full_attention"],
        sliding_window=24,
        rope_parameters=YARN,
        num_local_experts=4,
        num_experts_per_tok=2,
    )
    return _saved(GptOssForCausalLM(config), path)


KINDS: dict[str, Callable[[Path], str]] = {
    "plain": make_tiny_model,
    "scaled": make_scaled_model,
    "hybrid": make_hybrid_model,
    "sinks": make_sinks_model,
}


def _saved(model: PreTrainedModel, path: Path) -> str:
    model.save_pretrained(path)
    character_tokenizer().save_pretrained(path)
    return str(path)


def character_tokenizer(size: int = len(VOCABULARY)) -> PreTrainedTokenizerFast:
    """Returns a tokenizer of ASCII characters. Its other ids, up to `size`, occur in no text.

    It is byte-level BPE without merges, as which transformers reads the file of any Qwen2.
    """
    fillers = {f"<{i}>": i for i in range(len(VOCABULARY), size)}
    tokenizer = Tokenizer(models.BPE(VOCABULARY | fillers, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>")
    fast.chat_template = TEMPLATE
    return fast
