"""The models that the kit makes for trainers: tiny ones, and ones that do more than a plain decoder."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Gemma4ForCausalLM,
    Gemma4TextConfig,
    GenerationConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    PreTrainedModel,
)

from contracts.conformance.tiny_model import (
    VOCABULARY,
    make_hybrid_model,
    make_scaled_model,
    make_sinks_model,
    make_tiny_model,
)

WINDOW = 24  # tokens; some sequences are longer
SIZES: dict[str, Any] = {
    "vocab_size": len(VOCABULARY),
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 2048,
    "initializer_range": 0.2,
    "eos_token_id": 0,
    "pad_token_id": 1,
    "bos_token_id": None,
}


def make_model(path: Path, tied: bool, layers: int = 2, vocabulary: int = len(VOCABULARY)) -> str:
    """Writes a tiny model with random biases and norms, and a generation config. Returns its path."""
    make_tiny_model(path, tied=tied, vocabulary=vocabulary)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}  # pairs of heads share keys and values
    config = AutoConfig.from_pretrained(path, num_hidden_layers=layers, **heads)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.generation_config = GenerationConfig(eos_token_id=[0, 1], pad_token_id=1)
    return _saved(model, path)


def with_narrow_config(model: str, directory: Path) -> str:
    """Returns the model with a config that names bfloat16, although its weights are float32."""
    shutil.copytree(Path(model).resolve(), directory, copy_function=os.symlink)
    config = directory / "config.json"
    changed = json.loads(config.read_text()) | {"dtype": "bfloat16", "torch_dtype": "bfloat16"}
    config.unlink()
    config.write_text(json.dumps(changed))
    return str(directory)


def _saved(model: PreTrainedModel, path: Path) -> str:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(path)
    return str(path)


def _with_bias_in_the_head(path: Path) -> str:
    make_tiny_model(path)
    return _saved(PhiForCausalLM(PhiConfig(**SIZES, tie_word_embeddings=False)), path)


def _with_a_window(path: Path) -> str:
    make_tiny_model(path)
    config = MistralConfig(**SIZES, num_key_value_heads=1, head_dim=32, sliding_window=WINDOW)
    return _saved(MistralForCausalLM(config), path)


def _with_learned_positions(path: Path) -> str:
    make_tiny_model(path)
    config: dict[str, Any] = {
        "vocab_size": len(VOCABULARY),
        "n_embd": 64,
        "n_layer": 2,
        "n_head": 2,
        "n_positions": 2048,
        "initializer_range": 0.2,
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
        "eos_token_id": 0,
        "bos_token_id": None,
        "pad_token_id": 1,
    }
    return _saved(GPT2LMHeadModel(GPT2Config(**config)), path)


def _with_dropout(path: Path) -> str:
    make_tiny_model(path)
    return _saved(LlamaForCausalLM(LlamaConfig(**SIZES, attention_dropout=0.5)), path)


def with_buffers(path: Path) -> str:
    """Writes a Gemma 4, which multiplies the states of each layer by a buffer, and returns its path."""
    make_tiny_model(path)
    heads: dict[str, Any] = {"num_key_value_heads": 1, "head_dim": 32, "global_head_dim": 32}
    layers: dict[str, Any] = {"layer_types": ["full_attention"] * 2, "hidden_size_per_layer_input": 0}
    torch.manual_seed(0)
    model = Gemma4ForCausalLM(Gemma4TextConfig(**SIZES, **heads, **layers))
    for number, layer in enumerate(model.model.layers):
        layer.layer_scalar.fill_(0.5 + number)
    return _saved(model, path)


# Special models by their special feature; a trainer scores each correctly, or refuses it.
SPECIAL_MODELS: dict[str, Callable[[Path], str]] = {
    "has scalars of its layers in buffers": with_buffers,
    "divides its logits after the head": make_scaled_model,
    "has layers with a recurrent state": make_hybrid_model,
    "has sinks in its attention": make_sinks_model,
    "has a head with a bias": _with_bias_in_the_head,
    "has a window of attention": _with_a_window,
    "has learned positions": _with_learned_positions,
    "has dropout in training mode": _with_dropout,
}
