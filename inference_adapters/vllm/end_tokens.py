"""Makes vLLM stop at all end-of-sequence tokens of the model. Must not import vLLM."""

from types import SimpleNamespace
from typing import TYPE_CHECKING

from contracts.end_tokens import end_token_ids

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM


def stop_at_all_ends(llm: "AsyncLLM") -> list[int]:
    """Makes requests stop at all ends that `contracts.end_tokens` finds, and returns their ids."""
    config = llm.model_config
    named = llm.input_processor.generation_config_fields
    configs = [config.hf_config, config.hf_text_config, SimpleNamespace(**named)]
    named["eos_token_id"] = end_token_ids(llm.tokenizer, *configs)
    return named["eos_token_id"]
