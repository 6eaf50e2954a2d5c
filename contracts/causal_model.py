"""Loads the causal language model of a checkpoint, which may be the text part of a model with pictures.

transformers finds some text parts by itself, such as Qwen3.5's. Those of `WRAPPED` it does not.
"""

from typing import Any

from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging

WRAPPED = ("mistral3",)  # Mistral Small 3 and Ministral 3, as published
TEXT_NAMES = {"^language_model.model": "model", "^language_model.lm_head": "lm_head"}
TIED = "tie_word_embeddings"
OTHER_PARTS = ("vision_tower.", "multi_modal_projector.")


def causal_config(model: str, **options: Any) -> PreTrainedConfig:
    """Returns the config of the causal language model in `model`, a directory or a name on the hub.

    options: those of `AutoConfig.from_pretrained`. Raises its errors.
    """
    config: PreTrainedConfig = AutoConfig.from_pretrained(model, **options)
    if not is_text_part(model, **options):
        return config
    text: PreTrainedConfig = config.get_text_config()
    written, _ = PreTrainedConfig.get_config_dict(model, **options)
    text.tie_word_embeddings = written.get(TIED, text.tie_word_embeddings)  # what the whole says decides
    if config.model_type not in WRAPPED:
        return config  # from which transformers takes the text part
    if quantised := getattr(config, "quantization_config", None):
        text.quantization_config = quantised
    return text


def is_text_part(model: str, **options: Any) -> bool:
    """Returns True if the causal language model in `model` is not the class that the checkpoint names."""
    config: PreTrainedConfig = AutoConfig.from_pretrained(model, **options)
    classes: Any = AutoModelForCausalLM._model_mapping
    causal = classes[type(config)].__name__ if type(config) in classes else None
    return config.model_type in WRAPPED or bool(causal and causal not in (config.architectures or [causal]))


def load_causal(model: str, **options: Any) -> tuple[PreTrainedModel, dict[str, Any]]:
    """Returns the causal language model in `model`, and transformers' report on loading it.

    options: those of `AutoModelForCausalLM.from_pretrained`. Raises its errors.
    """
    own = {name: options[name] for name in ("local_files_only", "trust_remote_code") if name in options}
    options["config"] = causal_config(model, **own)
    wrapped = PreTrainedConfig.get_config_dict(model)[0].get("model_type") in WRAPPED
    verbosity = logging.get_verbosity()
    if wrapped:
        options["key_mapping"] = TEXT_NAMES
        logging.set_verbosity_error()  # otherwise the log has a table of all other parts
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(model, output_loading_info=True, **options)
    finally:
        logging.set_verbosity(verbosity)
    result, report = loaded
    if wrapped:
        result._weight_conversions = []  # by which `save_pretrained` would restore the names of the whole
        unknown = {name for name in report["unexpected_keys"] if not name.startswith(OTHER_PARTS)}
        report["unexpected_keys"] = unknown
    return result, report
