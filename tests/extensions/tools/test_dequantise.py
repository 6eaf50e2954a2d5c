"""A bfloat16 copy of a model that is published in fp8 or mxfp4."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from contracts.conformance.tiny_model import make_tiny_model
from extensions.tools.dequantise import dequantise
from pipelinerl.errors import PlanError
from tests.trainer_adapters.architectures import tiny_config, tiny_model

FP4 = torch.tensor([0.0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])  # by code
BLOCK = 32  # values with one scale


def describe(directory, **quantisation):
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"quantization_config": quantisation}))


def test_blocks_of_fp8(tmp_path):
    model = tmp_path / "model"
    make_tiny_model(model)
    weights = load_file(model / "model.safetensors")
    stored = {name: tensor.bfloat16() for name, tensor in weights.items()}
    for name in [name for name in weights if name.endswith("proj.weight")]:
        scale = weights[name].float().abs().max() / 448
        stored[name] = (weights[name].float() / scale).to(torch.float8_e4m3fn)
        stored[f"{name}_scale_inv"] = scale.view(1, 1)
    save_file(stored, model / "model.safetensors", metadata={"format": "pt"})
    describe(model, quant_method="fp8", activation_scheme="dynamic", weight_block_size=[128, 128])
    dequantise(model, tmp_path / "copy")
    copied = load_file(tmp_path / "copy" / "model.safetensors")
    assert copied.keys() == weights.keys() and {t.dtype for t in copied.values()} == {torch.bfloat16}
    for name, tensor in weights.items():
        torch.testing.assert_close(copied[name].float(), tensor.float(), rtol=0.07, atol=1e-3)


def test_blocks_of_mxfp4(tmp_path):
    tiny_model(tiny_config("gpt_oss")).bfloat16().save_pretrained(tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    stored = load_file(file)
    values = {}
    generator = torch.Generator().manual_seed(0)
    for name in [name for name in stored if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = stored.pop(name).shape
        codes = torch.randint(16, (experts, outputs, inputs), generator=generator)
        scales = torch.randint(120, 130, (experts, outputs, inputs // BLOCK), generator=generator)
        pairs = codes.view(experts, outputs, inputs // BLOCK, BLOCK // 2, 2)
        stored[f"{name}_blocks"] = (pairs[..., 0] | pairs[..., 1] << 4).to(torch.uint8)
        stored[f"{name}_scales"] = scales.to(torch.uint8)
        exponents = (scales - 127).repeat_interleave(BLOCK, dim=2)
        values[name] = torch.ldexp(FP4[codes], exponents).transpose(1, 2)
    save_file(stored, file, metadata={"format": "pt"})
    describe(tmp_path / "model", quant_method="mxfp4")
    dequantise(tmp_path / "model", tmp_path / "copy")
    copied = load_file(tmp_path / "copy" / "model.safetensors")
    assert len(values) == 8
    for name, tensor in values.items():
        assert torch.equal(copied[name].float(), tensor)


def test_another_kind_is_refused(tmp_path):
    make_tiny_model(tmp_path / "model")
    describe(tmp_path / "model", quant_method="gptq", bits=4)
    with pytest.raises(PlanError, match="quantised by gptq; this command reads fp8 and mxfp4 alone"):
        dequantise(tmp_path / "model", tmp_path / "copy")
