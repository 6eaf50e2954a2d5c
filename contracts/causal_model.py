"""Loads the causal language model of a checkpoint, which may be the text part of a model with pictures.

transformers finds some text parts by itself, such as Qwen3.5's. Those of `WRAPPED` it does not.
"""

from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

WRAPPED = ("mistral3",)  # Mistral Small 3 and Ministral 3, as published
TEXT_NAMES = {"^language_model.model": "model", "^language_model.lm_head": "lm_head"}
OTHER_PARTS = ("vision_tower.", "multi_modal_projector.")


def causal_config(model: str, **options: Any) -> PreTrainedConfig:
    """Returns the config of the causal language model in `model`, a directory or a name on the hub.

    options: those of `AutoConfig.from_pretrained`. Raises its errors.
    """
    config: PreTrainedConfig = AutoConfig.from_pretrained(model, **options)
    if config.model_type not in WRAPPED:
        return config
    text: PreTrainedConfig = config.get_text_config()
    if quantised := getattr(config, "quantization_config", None):
        text.quantization_config = quantised
    return text


def load_causal(model: str, **options: Any) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Returns the causal language model in `model`, and transformers' report on loading it.

    options: those of `AutoModelForCausalLM.from_pretrained`. Raises its errors.
    """
    own = {name: options[name] for name in ("local_files_only", "trust_remote_code") if name in options}
    wrapped = AutoConfig.from_pretrained(model, **own).model_type in WRAPPED
    if wrapped:
        options |= {"config": causal_config(model, **own), "key_mapping": TEXT_NAMES}
    loaded: Any = AutoModelForCausalLM.from_pretrained(model, output_loading_info=True, **options)
    result, report = loaded
    if wrapped:
        result._weight_conversions = []  # by which `save_pretrained` would restore the names of the whole
        unknown = {name for name in report["unexpected_keys"] if not name.startswith(OTHER_PARTS)}
        report["unexpected_keys"] = unknown
    return result, report
