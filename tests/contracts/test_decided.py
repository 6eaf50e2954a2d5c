import json
import sys

import pytest

from contracts.decided import refused_model, refused_option
from inference_adapters.vllm.decided import DECIDED


@pytest.mark.parametrize("option", DECIDED)
def test_an_option_that_the_adapter_decides_is_refused(option):
    only, why = DECIDED[option]
    arguments = {"max_num_seqs": 8, option.replace("_", "-"): "another"}
    assert refused_option("inference_adapters.vllm", arguments).endswith(f"=another cannot be set: {why}")
    assert refused_option("inference_adapters.vllm", {option: only}) is None
    assert "vllm" not in sys.modules


def test_values_are_compared_as_a_command_line_writes_them():
    taken = {"data_parallel_size": "1", "enable_lora": "false", "override_generation_config": "{}"}
    assert refused_option("inference_adapters.vllm", taken | {"load_format": "auto"}) is None
    refusal = refused_option("inference_adapters.vllm", {"load_format": "dummy"})
    assert refusal.startswith("load_format=dummy cannot be set: it would serve random weights")


@pytest.mark.parametrize(
    "module", ["inference_adapters.transformers", "json", "sys", "nowhere", "nowhere.here"]
)
def test_other_modules_refuse_nothing(module):
    assert refused_option(module, {"quantization": "fp8"}) is None


@pytest.mark.parametrize(
    ("server", "kind", "architecture", "why"),
    [
        ("vllm", "gpt_oss", "GptOssForCausalLM", "whose sinks and experts vLLM keeps in an update"),
        ("sglang", "qwen3_5", "Qwen3_5ForConditionalGeneration", "has pictures, and SGLang takes no update"),
        ("transformers", "gemma2", "Gemma2ForCausalLM", "bounds its attention scores"),
    ],
)
def test_a_model_that_a_server_does_not_take_is_refused(tmp_path, server, kind, architecture, why):
    config = {"model_type": kind, "architectures": [architecture]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert why in refused_model(f"inference_adapters.{server}", str(tmp_path))
