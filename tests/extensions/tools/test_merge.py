"""The mean of two models, and models that do not fit together."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from contracts.conformance.tiny_model import make_tiny_model
from extensions.tools.merge import merge
from pipelinerl.errors import PlanError
from tests.forked import Forked


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Two models of one shape, of which the second has other weights."""
    directory = tmp_path_factory.mktemp("models")
    first = directory / "first"
    make_tiny_model(first)
    second = directory / "second"
    shutil.copytree(first, second)
    generator = torch.Generator().manual_seed(1)
    weights = load_file(first / "model.safetensors")
    other = {n: torch.randn(t.shape, generator=generator).to(t.dtype) for n, t in weights.items()}
    save_file(other, second / "model.safetensors", metadata={"format": "pt"})
    return first, second


@pytest.mark.parametrize("weight", [0.0, 0.25, 1.0])
def test_each_tensor_is_the_weighted_mean(models, tmp_path, weight):
    first, second = models
    merge(first, second, tmp_path / "out", weight)
    one, other = (load_file(directory / "model.safetensors") for directory in models)
    merged = load_file(tmp_path / "out" / "model.safetensors")
    assert merged.keys() == one.keys()
    for name, tensor in merged.items():
        expected = ((1 - weight) * one[name].double() + weight * other[name].double()).to(tensor.dtype)
        torch.testing.assert_close(tensor, expected, rtol=1e-6, atol=1e-7)
        assert tensor.dtype == one[name].dtype
    same = {0.0: one, 1.0: other}.get(weight, merged)
    assert all(torch.equal(tensor, same[name]) for name, tensor in merged.items())


def test_the_command_makes_a_model_that_can_be_loaded(models, tmp_path):
    out = tmp_path / "out"
    made = Forked("-m", "extensions.tools.merge", *map(str, models), "--out", str(out))
    said, errors = made.communicate()
    assert (made.returncode, said) == (0, f"{out}\n"), errors
    model = AutoModelForCausalLM.from_pretrained(out)
    assert model(torch.tensor([[1, 2, 3]])).logits.isfinite().all()
    assert AutoTokenizer.from_pretrained(out).chat_template


def test_several_files_of_weights(models, tmp_path):
    first, second = models
    parts = tmp_path / "parts"
    shutil.copytree(first, parts)
    weights = load_file(parts / "model.safetensors")
    (parts / "model.safetensors").unlink()
    names = sorted(weights)
    for number, part in enumerate((names[:5], names[5:]), 1):
        file = parts / f"model-{number:05}-of-00002.safetensors"
        save_file({name: weights[name] for name in part}, file, metadata={"format": "pt"})
    merge(parts, second, tmp_path / "out", 0.5)
    merge(first, second, tmp_path / "whole", 0.5)
    files = sorted((tmp_path / "out").glob("*.safetensors"))
    assert len(files) == 2
    found = {name: tensor for file in files for name, tensor in load_file(file).items()}
    whole = load_file(tmp_path / "whole" / "model.safetensors")
    assert found.keys() == whole.keys()
    assert all(torch.equal(tensor, whole[name]) for name, tensor in found.items())


def changed(models, tmp_path, change):
    second = tmp_path / "changed"
    shutil.copytree(models[1], second)
    change(second)
    return second


def without_a_tensor(directory):
    weights = load_file(directory / "model.safetensors")
    weights.pop(min(weights))
    save_file(weights, directory / "model.safetensors")


def with_another_shape(directory):
    weights = load_file(directory / "model.safetensors")
    name = min(weights)
    weights[name] = weights[name][:-1].contiguous()
    save_file(weights, directory / "model.safetensors")


def with_another_config(directory):
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.1}))


def with_another_vocabulary(directory):
    tokenizer = json.loads((directory / "tokenizer.json").read_text())
    first, second, *_ = vocabulary = tokenizer["model"]["vocab"]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))


def as_on_the_hub(directory):
    """What transformers 4 wrote, and what a data set's author changes without another computation."""
    config = json.loads((directory / "config.json").read_text())
    rope = config.pop("rope_parameters")
    for key in ("layer_types", "dtype", "pad_token_id"):
        config.pop(key, None)
    old = {"rope_theta": rope["rope_theta"], "torch_dtype": "bfloat16", "transformers_version": "4.43.1"}
    (directory / "config.json").write_text(json.dumps(config | old))


def test_a_model_as_the_hub_has_it_and_an_export_fit_together(models, tmp_path):
    merge(models[0], changed(models, tmp_path, as_on_the_hub), tmp_path / "out", 0.5)
    assert (tmp_path / "out" / "model.safetensors").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (without_a_tensor, "only one of the models has"),
        (with_another_shape, "in the other"),
        (with_another_config, "config.json: rms_norm_eps is"),
        (with_another_vocabulary, "have other vocabularies"),
        (lambda directory: (directory / "model.safetensors").unlink(), "has no weights"),
        (lambda directory: (directory / "model.safetensors").write_text("{"), "cannot be read"),
    ],
)
def test_models_that_do_not_fit_together(models, tmp_path, change, words):
    with pytest.raises(PlanError, match=words):
        merge(models[0], changed(models, tmp_path, change), tmp_path / "out", 0.5)
    assert not (tmp_path / "out").exists()


def test_a_wrong_weight_and_a_directory_that_exists(models, tmp_path):
    with pytest.raises(PlanError, match="from 0 to 1"):
        merge(*models, tmp_path / "out", 1.5)
    with pytest.raises(PlanError, match="never overwritten"):
        merge(*models, tmp_path, 0.5)
