"""A directory is refused before the start, in one line, unless it has the model of its configuration."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, T5Config, ViTConfig

from contracts.conformance.tiny_model import character_tokenizer, make_tiny_model
from contracts.whole_model import IncompleteModelError
from inference_adapters.transformers.engine import TransformersEngine
from pipelinerl.errors import PlanError
from pipelinerl.launcher.compose import compose_config
from pipelinerl.launcher.model_files import check_files, check_vocabulary
from pipelinerl.launcher.model_source import find_model
from tests.trainer_adapters.architectures import tiny_config, tiny_model
from trainer_adapters.checkpoint_io import load_model

Weights = dict[str, torch.Tensor]
HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"
UP = "model.layers.1.mlp.up_proj.weight"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> dict[bool, Path]:
    """Returns a model by whether its head is tied."""
    return {
        tied: Path(make_tiny_model(tmp_path_factory.mktemp("model"), tied=tied)) for tied in (True, False)
    }


def weights(change: Callable[[Weights], Weights | None]) -> Callable[[Path], None]:
    """Returns what changes the weights in a model's file."""

    def spoil(model: Path) -> None:
        found = load_file(model / "model.safetensors")
        save_file(change(found) or found, model / "model.safetensors", metadata={"format": "pt"})

    return spoil


def renamed(change: Callable[[str], str]) -> Callable[[Path], None]:
    return weights(lambda found: {change(name): tensor for name, tensor in found.items()})


def without(*names: str) -> Callable[[Path], None]:
    return weights(lambda found: {name: found[name] for name in found if not name.endswith(names)})


def with_tensor(name: str, make: Callable[[Weights], torch.Tensor]) -> Callable[[Path], None]:
    return weights(lambda found: found | {name: make(found)})


def configured(**fields: object) -> Callable[[Path], None]:
    def spoil(model: Path) -> None:
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(config | fields))

    return spoil


def layers(count: int) -> Callable[[Path], None]:
    return configured(num_hidden_layers=count, layer_types=["full_attention"] * count)


def file(name: str, content: str | bytes) -> Callable[[Path], None]:
    raw = content if isinstance(content, bytes) else content.encode()
    return lambda model: (model / name).write_bytes(raw) and None


def in_place_of_weights(*spoils: Callable[[Path], None]) -> Callable[[Path], None]:
    def spoil(model: Path) -> None:
        (model / "model.safetensors").unlink()
        for each in spoils:
            each(model)

    return spoil


def in_shards(model: Path) -> None:
    whole = AutoModelForCausalLM.from_pretrained(model)
    (model / "model.safetensors").unlink()
    whole.save_pretrained(model, max_shard_size="60KB")


def without_a_shard(model: Path) -> None:
    in_shards(model)
    sorted(model.glob("model-*"))[1].unlink()


def without_an_index(model: Path) -> None:
    in_shards(model)
    (model / "model.safetensors.index.json").unlink()


def cut(name: str) -> Callable[[Path], None]:
    return lambda model: (model / name).write_bytes((model / name).read_bytes()[:-1000]) and None


def of_class(config: object) -> Callable[[Path], None]:
    return lambda model: config.save_pretrained(model)


INDEX = "model.safetensors.index.json"
ADAPTER = file("adapter_config.json", json.dumps({"base_model_name_or_path": "org/name"}))
REFUSED = {
    "a tensor": (without("1.mlp.up_proj.weight"), rf"{UP} is not in its files \(1 of 27 tensors are not\)"),
    "a norm": (without("model.norm.weight"), r"model.norm.weight is not in its files \(1 of"),
    "biases": (without("bias"), r"self_attn.k_proj.bias is not in its files \(6 of"),
    "the embedding": (without(EMBEDDING), r"(embed_tokens|lm_head).weight is not in its files"),
    "module.": (renamed("module.{}".format), r"not in its files \(.*have module.model"),
    "peft's": (renamed("base_model.model.{}".format), r"not in its files \(.*have base_model.model.model"),
    "a layer's": (
        renamed(lambda n: n.replace("rs.1.", "rs.one.")),
        r"model.layers.1.\S+ is not in its files",
    ),
    "unknown": (
        with_tensor("model.layers.0.gate", lambda w: w[UP].clone()),
        "model.layers.0.gate is in its files, and is no tensor of Qwen2ForCausalLM",
    ),
    "a shape": (with_tensor(UP, lambda w: w[UP][:5].clone()), rf"{UP} has the shape \[5, 64\] in its files"),
    "transposed": (with_tensor(UP, lambda w: w[UP].T.contiguous()), rf"{UP} has the shape \[64, 128\]"),
    "a vocabulary": (
        configured(vocab_size=120),
        r"embed_tokens.weight has the shape \[98, 64\] in its files",
    ),
    "too many layers": (layers(3), r"model.layers.2.\S+ is not in its files"),
    "too few layers": (layers(1), r"model.layers.1.\S+ is in its files"),
    "heads": (configured(num_key_value_heads=2), r"k_proj.\S+ has the shape"),
    "untied": (configured(tie_word_embeddings=False), "lm_head.weight is not in its files"),
    "tied": (with_tensor(HEAD, lambda w: 2 * w[EMBEDDING]), f"{HEAD} and {EMBEDDING} differ in its files"),
    "fp8": (
        with_tensor(UP, lambda w: w[UP].to(torch.float8_e4m3fn)),
        f"{UP} in model.safetensors is F8_E4M3, and config.json has no quantization_config",
    ),
    "int8": (with_tensor(UP, lambda w: (100 * w[UP]).to(torch.int8)), f"{UP} in model.safetensors is I8"),
    "bytes": (with_tensor(EMBEDDING, lambda w: w[EMBEDDING].to(torch.uint8)), f"{EMBEDDING} .* is U8"),
    "cut": (cut("model.safetensors"), "model.safetensors cannot be read: .*; copy the model again"),
    "empty": (file("model.safetensors", ""), "model.safetensors cannot be read"),
    "a web page": (file("model.safetensors", "<html>" * 99), "model.safetensors cannot be read"),
    "a pointer": (file("model.safetensors", POINTER), "model.safetensors is a pointer of Git LFS"),
    "a tokenizer's": (file("tokenizer.json", POINTER), "tokenizer.json is a pointer of Git LFS"),
    "a shard": (without_a_shard, r"model-00002-of-0000\d.safetensors, which the index names, is not there"),
    "no index": (without_an_index, "it has no weights: none of model.safetensors"),
    "an empty index": (
        in_place_of_weights(file(INDEX, '{"weight_map": {}}')),
        "index.json names no file of weights",
    ),
    "a torn index": (in_place_of_weights(file(INDEX, '{"weig')), "index.json is not an index of weights"),
    "a list": (in_place_of_weights(file(INDEX, "[]")), "index.json is not an index of weights"),
    "both": (file(INDEX, '{"weight_map": {"a": "other.safetensors"}}'), "index.json are both there"),
    "an adapter": (ADAPTER, "adapter_config.json is that of a PEFT adapter"),
    "gguf": (in_place_of_weights(file("q4.gguf", "GGUF")), "q4.gguf is a GGUF file"),
    "nothing": (in_place_of_weights(), "it has no weights"),
    "no tokenizer": (lambda model: (model / "tokenizer.json").unlink(), "has no tokenizer"),
    "t5": (of_class(T5Config()), r"T5Config \(t5\) is not the class of a causal language model"),
    "pictures": (of_class(ViTConfig()), r"ViTConfig \(vit\) is not the class"),
}


def spoilt(model: Path, spoil: Callable[[Path], None], to: Path) -> Path:
    shutil.copytree(model, to)
    spoil(to)
    return to


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_whole_model_is_refused(models, tmp_path, capfd, case):
    spoil, says = REFUSED[case]
    with pytest.raises(PlanError, match=says) as refusal:
        check_files(spoilt(models[True], spoil, tmp_path / "model"))
    assert "\n" not in str(refusal.value) and capfd.readouterr() == ("", "")


def test_a_tokenizer_of_another_model_is_refused(models):
    with pytest.raises(PlanError, match="the tokenizer's '<98>' is token 98, and vocab_size in .* is 98"):
        check_vocabulary(models[True], character_tokenizer(120))
    tokenizer = character_tokenizer()
    tokenizer.add_tokens(["<image>"])
    check_vocabulary(models[True], tokenizer)
    tokenizer.eos_token = "<image>"
    with pytest.raises(PlanError, match="'<image>' is token 98"):
        check_vocabulary(models[True], tokenizer)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("adapter_config.json", "{}", "adapter_config.json is that of a PEFT adapter"),
        ("model-Q4_K_M.gguf", "GGUF", "model-Q4_K_M.gguf is a GGUF file"),
        ("config.json", POINTER, "config.json is a pointer of Git LFS"),
    ],
)
def test_a_directory_of_another_kind_is_refused_although_it_has_no_config(tmp_path, name, content, says):
    file(name, content)(tmp_path)
    with pytest.raises(PlanError, match=says):
        find_model(compose_config([f"model.path={tmp_path}"]), tmp_path / "demo")


def as_bin(model: Path) -> None:
    torch.save(load_file(model / "model.safetensors"), model / "pytorch_model.bin")
    (model / "model.safetensors").unlink()


WHOLE = {
    "shards": in_shards,
    "an older format": as_bin,
    "names of the decoder": renamed(lambda name: name.removeprefix("model.")),
    "a tied head that is there too": with_tensor(HEAD, lambda w: w[EMBEDDING].clone()),
    "what was stored once": with_tensor(
        "model.layers.0.self_attn.rotary_emb.inv_freq", lambda w: torch.ones(4)
    ),
    "another dtype": weights(lambda found: {name: tensor.half() for name, tensor in found.items()}),
}


@pytest.mark.parametrize("case", WHOLE)
def test_what_transformers_loads_is_accepted(models, tmp_path, case):
    check_files(spoilt(models[True], WHOLE[case], tmp_path / "model"))


@pytest.mark.parametrize("kind", ["mixtral", "deepseek_v3", "gemma4_unified", "qwen3_moe", "gpt_oss"])
def test_names_that_transformers_converts_are_accepted(tmp_path, kind):
    tiny_model(tiny_config(kind)).save_pretrained(tmp_path)
    character_tokenizer().save_pretrained(tmp_path)
    check_files(tmp_path)


@pytest.mark.parametrize(
    "case", ["a tensor", "module.", "unknown", "a shape", "tied", "fp8", "cut", "a pointer"]
)
def test_trainer_and_server_refuse_it_too(models, tmp_path, case):
    spoil, says = REFUSED[case]
    model = str(spoilt(models[True], spoil, tmp_path / "model"))
    with pytest.raises(IncompleteModelError, match=says):
        load_model(model, 0)
    with pytest.raises(IncompleteModelError, match=says):
        TransformersEngine(model, "float32", "cpu", 8, 8)._load()
