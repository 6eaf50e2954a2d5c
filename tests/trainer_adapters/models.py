"""Tiny random models and sequences for the trainer tests; nothing is downloaded."""

from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from contracts.records import TrainingSequence

VOCAB = 61
SIZES = dict(hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2)
FAMILIES = {
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {"tie_word_embeddings": True}),  # tied, attention biases
    "llama": (LlamaForCausalLM, LlamaConfig, {"tie_word_embeddings": False}),  # an untied head
    "mistral": (MistralForCausalLM, MistralConfig, {"tie_word_embeddings": False, "sliding_window": 6}),
}


def make_model(path: Path, family: str, vocab: int = VOCAB) -> str:
    """Writes a float32 checkpoint with its tokenizer to `path`."""
    torch.manual_seed(1)
    model_class, config_class, options = FAMILIES[family]
    config = config_class(
        vocab_size=vocab,
        num_hidden_layers=2,
        initializer_range=0.2,  # far from uniform distributions
        **SIZES,
        **options,
    )
    model_class(config).save_pretrained(path)
    words = {f"w{i}": i for i in range(vocab - 1)} | {"</s>": vocab - 1}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>").save_pretrained(path)
    return str(path)


def make_sequences(lengths: list[int], seed: int = 0, vocab: int = VOCAB) -> list[TrainingSequence]:
    """Returns sequences at different temperatures, none of which is 1."""
    rng = np.random.default_rng(seed)
    return [
        TrainingSequence(
            rollout_id=str(i),
            loss_weight=1 / len(lengths),
            group_id=i,
            temperature=round(float(rng.uniform(0.5, 0.9)), 3),
            token_ids=rng.integers(0, vocab, n, dtype=np.int32),
            loss_mask=rng.random(n) < 0.5,
            behaviour_logprobs=rng.normal(-4, 1, n).astype(np.float32),
            versions=np.zeros(n, np.int32),
            advantages=rng.normal(size=n).astype(np.float32),
        )
        for i, n in enumerate(lengths)
    ]
