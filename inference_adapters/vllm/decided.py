"""The options of vLLM that the contract decides: `__main__` refuses them, and so does a plan."""

from transformers import PreTrainedConfig

from inference_adapters.plain_weights import DRAFTS, SCALES

FROM_THE_MODEL = "a model's own top_p, penalties, ... would change what is sampled"
TEXT_ALONE = "this server takes text alone"
SEVERAL = "start more servers instead (world.servers)"
ROUNDED = "the trainer's states are not rounded"
SAMPLED = "log-probabilities would not be of what the model says"
REPLACED = "the proof is of vLLM's own class"
PROTECTION = "it would not protect the contract's routes; set PIPELINERL_TOKEN, and a proxy for TLS"
DECIDED = {  # option that the contract fixes -> (value, reason)
    "generation_config": ("vllm", FROM_THE_MODEL),
    "override_generation_config": ({}, FROM_THE_MODEL),
    "logprobs_mode": ("processed_logprobs", "log-probabilities are of the distribution that is sampled from"),
    "worker_extension_cls": ("inference_adapters.vllm.transport.WeightWorker", "weights come through it"),
    "speculative_config": (None, DRAFTS),
    "spec_method": (None, DRAFTS),
    "spec_model": (None, DRAFTS),
    "spec_tokens": (None, DRAFTS),
    "quantization": (None, SCALES),
    "quantization_config": (None, SCALES),
    "kv_cache_dtype": ("auto", SCALES),
    "enable_mm_embeds": (False, TEXT_ALONE),
    "weight_transfer_config": (None, "weights come over the contract's group"),
    "data_parallel_size": (1, SEVERAL),
    "api_key": (None, PROTECTION),
    "ssl_keyfile": (None, PROTECTION),
    "ssl_certfile": (None, PROTECTION),
    "mamba_cache_dtype": ("auto", ROUNDED),
    "mamba_ssm_cache_dtype": ("auto", ROUNDED),
    "enable_mamba_cache_stochastic_rounding": (False, ROUNDED),
    "watermark": (0.0, SAMPLED),
    "watermark_config": (None, SAMPLED),
    "logits_processors": (None, SAMPLED),
    "kv_sharing_fast_prefill": (False, "scores of given tokens would be wrong"),
    "enable_lora": (False, "an update replaces the model's own weights, and an adapter would change them"),
    "worker_cls": ("auto", REPLACED),
    "scheduler_cls": (None, REPLACED),
    "model_class_overrides": ({}, REPLACED),
    "kv_transfer_config": (None, "keys and values of other servers may be of other weights"),
    "tokenizer": (None, "the pipeline reads the model's own tokenizer"),
    "skip_tokenizer_init": (False, "texts and end tokens need the model's own tokenizer"),
    "enable_sleep_mode": (False, "a server that sleeps answers nobody, and forgets its weights"),
    "uds": (None, "the trainer comes over TCP"),
    "root_path": (None, "the contract's routes stand at /"),
}
NEVER = {"load_format": ("dummy", "it would serve random weights until the first update")}  # (value, reason)
KEPT = {"gpt_oss": "sinks and experts"}  # model type -> weights that vLLM 0.32 would keep in an update


def check_model(model: str) -> None:
    """Raises ValueError, with a one-line message, for a model of which vLLM would keep weights."""
    kind = PreTrainedConfig.get_config_dict(model)[0].get("model_type")
    if kind in KEPT:
        raise ValueError(
            f"{model} is a {kind}, whose {KEPT[kind]} vLLM keeps in an update: use another server"
        )
