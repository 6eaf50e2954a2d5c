"""Models of known shapes with random weights, made here from a config alone: nothing is downloaded."""

import gc
from pathlib import Path

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM
from transformers.utils import logging

from contracts.conformance.tiny_model import character_tokenizer
from contracts.model_shape import ModelShape

# The sizes of Qwen2.5's models of these names.
HALF_A_BILLION = ModelShape(
    layers=24, hidden_size=896, intermediate_size=4864, heads=14, kv_heads=2, head_dim=64,
    vocab_size=151_936, context=32_768, tied=True,
)  # fmt: skip
ONE_AND_A_HALF_BILLION = ModelShape(
    layers=28, hidden_size=1536, intermediate_size=8960, heads=12, kv_heads=2, head_dim=128,
    vocab_size=151_936, context=32_768, tied=True,
)  # fmt: skip
TINY = ModelShape(
    layers=2, hidden_size=64, intermediate_size=128, heads=2, kv_heads=1, head_dim=32,
    vocab_size=512, context=2048, tied=True,
)  # fmt: skip


def write_model(path: Path, shape: ModelShape, dtype: torch.dtype, device: str) -> str:
    """Writes a Qwen2 of this shape, with weights drawn on `device`, and a tokenizer. Returns its path."""
    logging.disable_progress_bar()
    torch.manual_seed(0)
    with torch.device(device):
        model = Qwen2ForCausalLM(_config(shape))
    model.to(dtype).save_pretrained(path)
    character_tokenizer(shape.vocab_size).save_pretrained(path)
    del model
    free_memory()
    return str(path)


def write_config(path: Path, shape: ModelShape) -> str:
    """Writes the configuration of a Qwen2 of this shape, without weights. Returns its path."""
    _config(shape).save_pretrained(path)
    return str(path)


def _config(shape: ModelShape) -> Qwen2Config:
    return Qwen2Config(
        architectures=["Qwen2ForCausalLM"],
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        max_position_embeddings=shape.context,
        tie_word_embeddings=shape.tied,
        eos_token_id=0,
        pad_token_id=1,
        bos_token_id=None,
    )


def free_memory() -> None:
    """Gives the memory of what is no longer referred to back to the GPU."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
