"""A bfloat16 copy of a model that is published in fp8 or mxfp4."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from contracts.conformance.tiny_model import make_tiny_model
from contracts.whole_model import fault_in_files
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
    stored["model.norm.weight"] = weights["model.norm.weight"].float() + 1 / 3
    for name in [name for name in weights if name.endswith("proj.weight")]:
        scale = weights[name].float().abs().max() / 448
        stored[name] = (weights[name].float() / scale).to(torch.float8_e4m3fn)
        stored[f"{name}_scale_inv"] = scale.view(1, 1)
    stored["model.layers.0.mlp.up_proj.activation_scale"] = torch.ones(())
    (model / "model.safetensors").unlink()
    file = "model-00001-of-00001.safetensors"
    save_file(stored, model / file, metadata={"format": "pt"})
    index = {"weight_map": dict.fromkeys(stored, file)}
    (model / "model.safetensors.index.json").write_text(json.dumps(index))
    describe(model, quant_method="fp8", activation_scheme="dynamic", weight_block_size=[128, 128])
    dequantise(model, tmp_path / "copy")
    copied = load_file(tmp_path / "copy" / file)
    assert copied.keys() == weights.keys() and fault_in_files(tmp_path / "copy") is None
    assert torch.equal(copied.pop("model.norm.weight"), stored["model.norm.weight"])
    assert {t.dtype for t in copied.values()} == {torch.bfloat16}
    for name, tensor in weights.items():
        if name not in copied:
            continue
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


@pytest.mark.parametrize(
    ("quantisation", "says"),
    [
        ({"quant_method": "gptq", "bits": 4}, "quantised by gptq; this command reads fp8 and mxfp4 alone"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size is .128., and not two"),
        ({"quant_method": "fp8"}, "has codes without _scale_inv, in a form that is not known here"),
    ],
)
def test_what_it_cannot_read_is_refused(tmp_path, quantisation, says):
    make_tiny_model(tmp_path / "model")
    file = tmp_path / "model" / "model.safetensors"
    codes = {name: tensor.to(torch.float8_e4m3fn) for name, tensor in load_file(file).items()}
    save_file(codes, file, metadata={"format": "pt"})
    describe(tmp_path / "model", **quantisation)
    with pytest.raises(PlanError, match=says):
        dequantise(tmp_path / "model", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
