"""Which architectures of transformers the start check accepts, by `python -m` of this module.

Each causal language model that transformers ships is made tiny, with random weights, and compared as a
trainer compares it at its start. It prints a line for each; --write puts tables into docs/architectures.md.
"""

import argparse
import logging
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from trainer_adapters.attention import PACKED
from trainer_adapters.buffers import persistent_buffers
from trainer_adapters.start_check import check_scores
from trainer_adapters.token_scores import TokenScorer

PAGE = Path(__file__).parents[2] / "docs" / "architectures.md"
LARGEST = 20_000_000  # parameters
WINDOW = 24  # tokens: of a model that has no window unless its config asks for one
WITH_WINDOW = f", window of {WINDOW}"  # ends the title of such a model
SIZES = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "embedding_size", "dim", "n_embed"), 64),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "decoder_ffn_dim", "encoder_ffn_dim", "n_inner"), 96),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers"), 4),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), 2),
    **dict.fromkeys(("head_dim", "global_head_dim", "v_head_dim"), 16),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k", "top_k_experts", "n_shared_experts"), 2),
    **dict.fromkeys(
        ("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 32
    ),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "hidden_size_per_layer_input"), 16),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "ffn_hidden_size", "laurel_rank"), 16),
    **dict.fromkeys(("n_group", "topk_group", "num_nextn_predict_layers"), 1),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input"), 160),
    "first_k_dense_replace": 1,
    "num_kv_shared_layers": 0,
}
CONV = ["conv", "full_attention", "conv", "full_attention"]
LINEAR = ["linear_attention", "full_attention", "linear_attention", "full_attention"]
# An indexer of few heads scores many keys 0, and ties are broken otherwise in a padded batch.
INDEXER = {"index_topk": 12, "index_n_heads": 64, "index_head_dim": 32}
SCALED = {"logits_scaling": 8.0, "attention_multiplier": 0.2, "embedding_multiplier": 3.0}
# Fields as published checkpoints have them, where the defaults leave a part out, by model type.
PUBLISHED = {
    **dict.fromkeys(("axk2", "deepseek_v32", "glm_moe_dsa", "hy_v4"), INDEXER),
    **dict.fromkeys(("gemma3_text", "gemma4_text"), {"final_logit_softcapping": 30.0}),
    **dict.fromkeys(("granite", "granitemoe"), SCALED),
    "bamba": {"mamba_n_heads": 8, "mamba_d_head": 16, "attn_layer_indices": [1, 3]},
    "falcon_h1": {"lm_head_multiplier": 0.3, "mamba_d_ssm": 64, "mamba_n_heads": 4, "mamba_d_head": 16},
    "granitemoehybrid": {
        **SCALED,
        "layer_types": LINEAR,
        "residual_multiplier": 0.5,
        "mamba_n_heads": 8,
        "mamba_d_head": 16,
    },
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "kimi_linear": {
        "layer_types": LINEAR,
        "num_experts_per_token": 2,
        "num_expert_group": 1,
        "topk_group": 1,
    },
    "lfm2": {"layer_types": CONV},
    "lfm2_moe": {"layer_types": CONV, "num_dense_layers": 1},
    "mamba2": {"num_heads": 8, "head_dim": 16, "n_groups": 1},
    "zamba2": {"layer_types": ["linear_attention", "hybrid"] * 2, "hybrid_layer_ids": [1, 3]},
}
IN_USE = (  # beginnings of the model types that stand first in the tables
    "qwen3", "qwen2", "gpt_oss", "llama", "gemma", "mistral", "ministral", "olmo", "deepseek", "glm",
    "granite", "lfm2", "nemotron", "phi", "smollm", "falcon_h1", "kimi", "minimax",
)  # fmt: skip
ALWAYS = {"head_dim", "num_key_value_heads", "num_experts_per_tok"}  # reduced even if the default is None
IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
PARTS = ("text_config", "vision_config", "audio_config")


class Row(NamedTuple):
    model_type: str
    name: str  # name of the class
    verdict: str  # accepted, refused or not made
    says: str  # the difference, or why


def tiny_config(model_type: str, **more: object) -> PreTrainedConfig:
    """Returns the architecture's default config with every size reduced."""
    config_class = CONFIG_MAPPING[model_type]
    default = config_class()
    has = default.to_dict()
    chosen = {
        name: size
        for name, size in SIZES.items()
        if has.get(name) is not None or (name in ALWAYS and name in has)
    }
    if "kv_lora_rank" in chosen:
        chosen["num_key_value_heads"] = 4  # latent attention has one key per head
    chosen |= {name: token for name, token in IDS.items() if name in has}
    for name in PARTS:
        if isinstance(part := getattr(default, name, None), PreTrainedConfig):
            chosen[name] = tiny_config(part.model_type, **more if name == "text_config" else {})
    return config_class(**chosen | ({} if "text_config" in chosen else more))


def published_config(model_type: str, **more: object) -> PreTrainedConfig:
    """Returns the reduced config with the fields that published checkpoints set."""
    return tiny_config(model_type, **PUBLISHED.get(model_type, {}) | more)


def tiny_model(config: PreTrainedConfig) -> PreTrainedModel:
    """Returns a model with only random weights and buffers, so that every part has an effect."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=PACKED, dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn_like(parameter)
            parameter.copy_(0.15 * noise) if parameter.dim() > 1 else parameter.add_(0.1 * noise)
        for buffer in persistent_buffers(model).values():
            if buffer.is_floating_point():
                # Zeros among other values are a mask, such as of a decay; a buffer of zeros is a bias.
                scale = buffer if buffer.any() else torch.ones_like(buffer)
                buffer.add_(0.1 * torch.randn_like(buffer) * scale)
    return model


def rows() -> Iterator[Row]:
    """Yields the verdict on each architecture; on those with an optional window also with one."""
    for model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        row = try_one(model_type)
        yield row
        if row.verdict == "accepted" and _window(published_config(model_type)) is None:
            yield try_one(model_type, sliding_window=WINDOW)


def _window(config: PreTrainedConfig) -> int | str | None:
    """Returns the window of a config that may have one; "none" of one that may not, or needs a switch."""
    fields = config.get_text_config().to_dict()
    return "none" if "use_sliding_window" in fields else fields.get("sliding_window", "none")


def try_one(model_type: str, **more: object) -> Row:
    name = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]
    title = f"{model_type}{WITH_WINDOW}" if more else model_type
    try:
        config = published_config(model_type, **more)
        _run(config)
    except Exception as error:
        return Row(title, name, "not made", f"{type(error).__name__}: {_short(error, name)}")
    try:
        found = difference(tiny_model(config))
    except Exception as error:
        return Row(title, name, "refused", _short(error, name))
    return Row(title, name, "accepted", f"{found:.0e}")


def _run(config: PreTrainedConfig) -> None:
    """Runs the model as transformers ships it. Raises an error if this script cannot make it tiny."""
    with torch.device("meta"):
        size = sum(p.numel() for p in AutoModelForCausalLM.from_config(config).parameters())
    if size > LARGEST:
        raise OverflowError(f"{size / 1e6:.0f} million parameters, made small as the others are")
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        model(input_ids=torch.arange(3, 9).unsqueeze(0), use_cache=False)


def difference(model: PreTrainedModel) -> float:
    """Returns the start check's difference. Raises its refusal."""
    scorer = TokenScorer(model, fp32_head=True, logits_chunk=64)
    return check_scores(
        model, lambda batch, own: scorer(batch, True, own), torch.float32, torch.device("cpu")
    )


def _short(error: Exception, name: str) -> str:
    if error.args == (PACKED,):
        return "has attention layers of its own, which cannot run packed"
    text = re.sub(r"\s+", " ", str(error)).strip().removeprefix(f"{name} ")
    if wrong := re.search(r"is (\S+) nats", text):
        return f"would be scored wrongly, by {wrong[1]} nats"
    return text if len(text) < 160 else f"{text[:160].rsplit(' ', 1)[0]} …"


def page(found: list[Row]) -> str:
    """Returns the tables, in the form of docs/architectures.md."""
    accepted, refused = (
        sorted((row for row in found if row.verdict == verdict), key=_not_in_use)
        for verdict in ("accepted", "refused")
    )
    largest = max((row.says for row in accepted), key=float, default="0")
    parts = ["", f"## Accepted: {len(accepted)}", "", f"No token differs by more than {largest} nats.", ""]
    parts += _table({"as published": accepted})
    parts += ["", f"## Refused: {len(refused)}", ""]
    reasons: dict[str, list[Row]] = {}
    for row in refused:
        reasons.setdefault(_kind(row), []).append(row)
    parts += _table(dict(sorted(reasons.items(), key=lambda item: -len(item[1]))))
    return "\n".join(parts)


def _table(groups: dict[str, list[Row]]) -> list[str]:
    """Returns a table of model types, with a line for each group, and one for its models with a window."""
    lines = ["| | model types |", "|---|---|"]
    for title, rows_of in groups.items():
        names = [row.model_type for row in rows_of]
        plain = [name for name in names if not name.endswith(WITH_WINDOW)]
        with_window = [name.removesuffix(WITH_WINDOW) for name in names if name.endswith(WITH_WINDOW)]
        lines += [f"| {title} | {', '.join(plain)} |"] if plain else []
        lines += [f"| {title}, with a window | {', '.join(with_window)} |"] if with_window else []
    return lines


def _kind(row: Row) -> str:
    """Returns why a model is refused, without what differs between models that are refused alike."""
    reason = re.sub(r"(scored wrongly), by .* nats", r"\1", row.says.replace("|", "/"))
    return re.sub(r"layers of class \w+", "layers of a class that is not known", reason)


def _not_in_use(row: Row) -> int:
    return next((i for i, name in enumerate(IN_USE) if row.model_type.startswith(name)), len(IN_USE))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put the tables into docs/architectures.md")
    write = parser.parse_args(arguments).write
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    found = []
    for row in rows():
        found.append(row)
        print(*row, sep=" | ", flush=True)
    if write:
        before = PAGE.read_text().partition("<!-- tables -->")[0]
        PAGE.write_text(f"{before}<!-- tables -->\n{page(found)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
