"""Which models the server takes, and how: the engine asks, and so does a plan."""

from transformers import AutoModelForCausalLM, DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from contracts.causal_model import causal_config

ROWS = {  # types of models with recurrent layers that `row_batching` was shown to compute
    "bamba",
    "falcon_h1",
    "granitemoehybrid",
    "jamba",
    "kimi_linear",
    "lfm2",
    "lfm2_moe",
    "olmo_hybrid",
    "qwen3_5",
    "qwen3_5_text",
    "qwen3_5_moe",
    "qwen3_5_moe_text",
    "qwen3_next",
}
BATCHED = {"full_attention", "sliding_attention"}  # types of layers that continuous batching knows
WITH_SINKS = {"gpt_oss", "granite_swa", "granitemoe_swa"}  # served by paged eager attention, which has sinks


def check_model(model: str) -> None:
    """Raises ValueError, with a one-line message, for layers that continuous batching does not compute."""
    whole = causal_config(model, local_files_only=True)
    if type(whole) not in AutoModelForCausalLM._model_mapping:
        raise ValueError(f"{model} is a {whole.model_type}, which has no causal language model")
    model_class = AutoModelForCausalLM._model_mapping[type(whole)]
    if not model_class._supports_sdpa and whole.model_type not in WITH_SINKS:
        raise ValueError(f"{model} has attention that is not batched here: use inference=vllm")
    config = whole.get_text_config()
    if whole.model_type in ROWS:
        kinds = {type(layer) for layer in DynamicCache(config=config).layers}
        if not any(issubclass(kind, DynamicLayer) for kind in kinds):
            raise ValueError(f"{model} has no layer of attention, which rows need: use inference=vllm")
        if any(issubclass(kind, DynamicSlidingWindowLayer) for kind in kinds):
            raise ValueError(f"{model} has recurrent layers and windows: use inference=vllm")
        return
    if other := sorted({*(getattr(config, "layer_types", None) or ())} - BATCHED):
        raise ValueError(f"{model} has layers of {', '.join(other)}: use inference=vllm")
    if getattr(config, "attn_logit_softcapping", None) is not None:
        raise ValueError(f"{model} bounds its attention scores (attn_logit_softcapping): use inference=vllm")
