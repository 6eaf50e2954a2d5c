import sys

import pytest

from contracts.decided import refused_option
from inference_adapters.vllm.decided import DECIDED


@pytest.mark.parametrize("option", DECIDED)
def test_an_option_that_the_adapter_decides_is_refused(option):
    only, why = DECIDED[option]
    arguments = {"max_num_seqs": 8, option.replace("_", "-"): "another"}
    assert refused_option("inference_adapters.vllm", arguments).endswith(f"=another cannot be set: {why}")
    assert refused_option("inference_adapters.vllm", {option: only}) is None
    assert "vllm" not in sys.modules


@pytest.mark.parametrize(
    "module", ["inference_adapters.transformers", "json", "sys", "nowhere", "nowhere.here"]
)
def test_other_modules_refuse_nothing(module):
    assert refused_option(module, {"quantization": "fp8"}) is None
