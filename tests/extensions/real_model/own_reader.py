"""Reads the weights of a GGUF file of a Llama: a second opinion on `extensions.real_model.converting`.

The formats are those of ggml: blocks of 32 values. Q8_0 is a scale in half precision and 32 bytes. Q4_1 is a
scale and a minimum in half precision and 32 half bytes, of which the low ones come first.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from gguf import GGUFReader

NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def weights_in(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    """Yields each weight under its Hugging Face name, in float32."""
    reader = GGUFReader(path)
    heads = {
        "attn_q": reader.fields["llama.attention.head_count"].contents(),
        "attn_k": reader.fields["llama.attention.head_count_kv"].contents(),
    }
    for tensor in reader.tensors:
        layer, name = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.weight", tensor.name).groups()
        values = _values(tensor.tensor_type.name, tensor.data).reshape(tensor.shape[::-1])
        if name in heads:  # ggml has the two halves of a head's rotated values interleaved
            values = values.reshape(heads[name], -1, 2, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        inside = f"model.layers.{layer}." if layer else ""
        yield f"{inside}{NAMES[name]}.weight", values


def _values(form: str, data: np.ndarray) -> np.ndarray:
    if form == "F32":
        return data
    blocks = data.reshape(-1, {"Q8_0": 34, "Q4_1": 20}[form])
    scale = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    if form == "Q8_0":
        return blocks[:, 2:].view(np.int8) * scale
    minimum = blocks[:, 2:4].copy().view(np.float16).astype(np.float32)
    halves = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1)
    return halves * scale + minimum
