"""Models whose weights an update would not replace are refused by every adapter, before an engine loads."""

import json
from pathlib import Path

import pytest

from contracts.conformance.tiny_model import make_tiny_model
from inference_adapters.plain_weights import check_plain_weights
from inference_adapters.transformers.engine import TransformersEngine
from tests.inference_adapters.test_without_engines import options

FP8 = {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
DRAFTING = {"speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "m"}}}


def model_with(tmp_path: Path, config: dict, file: str | None = None) -> str:
    model = Path(make_tiny_model(tmp_path))
    path = model / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    if file:
        (model / file).write_text("{}")
    return str(model)


@pytest.mark.parametrize(
    ("config", "file", "says"),
    [
        (FP8, None, r"is quantised \(config.json: quantization_config\)"),
        ({"text_config": FP8}, None, r"is quantised \(config.json: text_config: quantization_config\)"),
        ({"compression_config": {"format": "int-quantized"}}, None, r"is quantised \(config.json: compr"),
        ({}, "hf_quant_config.json", r"is quantised \(hf_quant_config.json\)"),
        ({}, "quantize_config.json", r"is quantised \(quantize_config.json\)"),
        (DRAFTING, None, r"drafts for another model \(speculators_config\)"),
    ],
)
def test_what_an_update_would_not_replace_is_refused(tmp_path, config, file, says):
    with pytest.raises(ValueError, match=rf"^\S+ {says}[^\n]*$"):
        check_plain_weights(model_with(tmp_path, config, file))


@pytest.mark.parametrize("overrides", [None, {}, {"rope_theta": 1e4}, {"quantization_config": None}])
def test_plain_weights_are_served(tmp_path, overrides):
    check_plain_weights(make_tiny_model(tmp_path), overrides=overrides)


def test_every_adapter_looks(tmp_path):
    model = model_with(tmp_path, FP8)
    for serve in (
        lambda: TransformersEngine(model, "float32", "cpu", 8, 8),
        lambda: options(model),
        lambda: check_plain_weights(make_tiny_model(tmp_path / "plain"), overrides=FP8),
    ):
        with pytest.raises(ValueError, match="is quantised"):
            serve()
