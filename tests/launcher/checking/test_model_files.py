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
from pipelinerl.launcher.checking.model import check_files, check_vocabulary
from pipelinerl.launcher.checking.model_source import find_model
from pipelinerl.launcher.composing.compose import compose_config
from tests.trainer_adapters.architectures import tiny_config, tiny_model
from trainer_adapters.checkpoint_io import load_model

Spoil = Callable[[Path], object]
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"
UP = "model.layers.1.mlp.up_proj.weight"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return Path(make_tiny_model(tmp_path_factory.mktemp("model")))


def weights(change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]) -> Spoil:
    return lambda model: save_file(change(load_file(model / WEIGHTS)), model / WEIGHTS, {"format": "pt"})


def renamed(change: Callable[[str], str]) -> Spoil:
    return weights(lambda found: {change(name): tensor for name, tensor in found.items()})


def without(ending: str) -> Spoil:
    return weights(lambda found: {name: found[name] for name in found if not name.endswith(ending)})


def put(name: str, like: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Spoil:
    return weights(lambda found: found | {name: change(found[like]).clone().contiguous()})


def configured(**fields: object) -> Spoil:
    def spoil(model: Path) -> None:
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(config | fields))

    return spoil


def layers(count: int) -> Spoil:
    return configured(num_hidden_layers=count, layer_types=["full_attention"] * count)


def file(name: str, content: str) -> Spoil:
    return lambda model: (model / name).write_text(content)


def no_weights(model: Path) -> None:
    (model / WEIGHTS).unlink()


def both(*spoils: Spoil) -> Spoil:
    return lambda model: [spoil(model) for spoil in spoils]


def in_shards(model: Path) -> None:
    whole = AutoModelForCausalLM.from_pretrained(model)
    no_weights(model)
    whole.save_pretrained(model, max_shard_size="60KB")


def cut(model: Path) -> None:
    (model / WEIGHTS).write_bytes((model / WEIGHTS).read_bytes()[:-1000])


def as_bin(model: Path) -> None:
    torch.save(load_file(model / WEIGHTS), model / "pytorch_model.bin")
    no_weights(model)


REFUSED: dict[str, tuple[Spoil, str]] = {
    "tensor": (without("1.mlp.up_proj.weight"), rf"{UP} is not in its files \(1 of 27 tensors are not\)"),
    "norm": (without("model.norm.weight"), r"model.norm.weight is not in its files \(1 of"),
    "biases": (without("bias"), r"self_attn.k_proj.bias is not in its files \(6 of"),
    "embedding": (without(EMBEDDING), r"(embed_tokens|lm_head).weight is not in its files"),
    "module.": (renamed("module.{}".format), r"not in its files \(.*have module.model"),
    "peft's": (renamed("base_model.model.{}".format), r"not in its files \(.*have base_model.model.model"),
    "a layer's": (
        renamed(lambda n: n.replace("rs.1.", "rs.one.")),
        r"model.layers.1.\S+ is not in its files",
    ),
    "unknown": (put("model.gate", UP, torch.abs), "model.gate is in its files, and is no tensor of Qwen2"),
    "shape": (put(UP, UP, lambda w: w[:5]), rf"{UP} has the shape \[5, 64\] in its files"),
    "transposed": (put(UP, UP, torch.t), rf"{UP} has the shape \[64, 128\]"),
    "vocabulary": (configured(vocab_size=120), r"embed_tokens.weight has the shape \[98, 64\] in its files"),
    "too many layers": (layers(3), r"model.layers.2.\S+ is not in its files"),
    "too few layers": (layers(1), r"model.layers.1.\S+ is in its files"),
    "heads": (configured(num_key_value_heads=2), r"k_proj.\S+ has the shape"),
    "untied": (configured(tie_word_embeddings=False), "lm_head.weight is not in its files"),
    "tied": (put(HEAD, EMBEDDING, torch.exp), f"{HEAD} and {EMBEDDING} differ in its files"),
    "fp8": (
        put(UP, UP, lambda w: w.to(torch.float8_e4m3fn)),
        f"{UP} in {WEIGHTS} is F8_E4M3, and config.json",
    ),
    "int8": (put(UP, UP, torch.Tensor.char), f"{UP} in model.safetensors is I8"),
    "bytes": (put(EMBEDDING, EMBEDDING, torch.Tensor.byte), f"{EMBEDDING} .* is U8"),
    "cut": (cut, "model.safetensors cannot be read: .*; copy the model again"),
    "empty": (file(WEIGHTS, ""), "model.safetensors cannot be read"),
    "a web page": (file(WEIGHTS, "<html>" * 99), "model.safetensors cannot be read"),
    "pointer": (file(WEIGHTS, POINTER), "model.safetensors is a pointer of Git LFS"),
    "tokenizer's pointer": (file("tokenizer.json", POINTER), "tokenizer.json is a pointer of Git LFS"),
    "lost shard": (
        both(in_shards, lambda model: sorted(model.glob("model-*"))[1].unlink()),
        r"model-00002-of-0000\d.safetensors, which the index names, is not there",
    ),
    "no index": (both(in_shards, lambda model: (model / INDEX).unlink()), "it has no weights: none of model"),
    "empty index": (both(no_weights, file(INDEX, '{"weight_map": {}}')), "json names no file of weights"),
    "torn index": (both(no_weights, file(INDEX, '{"weig')), "index.json is not an index of weights"),
    "list": (both(no_weights, file(INDEX, "[]")), "index.json is not an index of weights"),
    "two": (file(INDEX, '{"weight_map": {"a": "other.safetensors"}}'), "index.json are both there"),
    "end tokens": (file("generation_config.json", "{'a'"), "generation_config.json cannot be read"),
    "adapter": (file("adapter_config.json", "{}"), "adapter_config.json is that of a PEFT adapter"),
    "gguf": (both(no_weights, file("q4.gguf", "GGUF")), "q4.gguf is a GGUF file"),
    "nothing": (no_weights, "it has no weights"),
    "no tokenizer": (lambda model: (model / "tokenizer.json").unlink(), "has no tokenizer"),
    "t5": (T5Config().save_pretrained, r"T5Config \(t5\) is not the class of a causal language model"),
    "pictures": (ViTConfig().save_pretrained, r"ViTConfig \(vit\) is not the class"),
}
WHOLE: dict[str, Spoil] = {
    "shards": in_shards,
    "an older format": as_bin,
    "names of the decoder": renamed(lambda name: name.removeprefix("model.")),
    "a tied head that is there too": put(HEAD, EMBEDDING, torch.clone),
    "what was stored once": put("model.layers.0.self_attn.rotary_emb.inv_freq", UP, torch.clone),
    "another dtype": weights(lambda found: {name: tensor.half() for name, tensor in found.items()}),
}


def spoilt(model: Path, spoil: Spoil, to: Path) -> Path:
    shutil.copytree(model, to)
    spoil(to)
    return to


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_whole_model_is_refused(model, tmp_path, capfd, case):
    spoil, says = REFUSED[case]
    with pytest.raises(PlanError, match=says) as refusal:
        check_files(spoilt(model, spoil, tmp_path / "model"))
    assert "\n" not in str(refusal.value) and capfd.readouterr() == ("", "")


@pytest.mark.parametrize("case", ["tensor", "module.", "unknown", "shape", "tied", "fp8", "cut", "pointer"])
def test_trainer_and_server_refuse_it_too(model, tmp_path, case):
    spoil, says = REFUSED[case]
    path = str(spoilt(model, spoil, tmp_path / "model"))
    with pytest.raises(IncompleteModelError, match=says):
        load_model(path, 0)
    with pytest.raises(IncompleteModelError, match=says):
        TransformersEngine(path, "float32", "cpu", 8, 8)._load()


@pytest.mark.parametrize("case", WHOLE)
def test_what_transformers_loads_is_accepted(model, tmp_path, case):
    check_files(spoilt(model, WHOLE[case], tmp_path / "model"))


@pytest.mark.parametrize("kind", ["mixtral", "deepseek_v3", "gemma4_unified", "qwen3_moe", "gpt_oss"])
def test_names_that_transformers_converts_are_accepted(tmp_path, kind):
    tiny_model(tiny_config(kind)).save_pretrained(tmp_path)
    character_tokenizer().save_pretrained(tmp_path)
    check_files(tmp_path)


@pytest.mark.parametrize("name", ["adapter_config.json", "model-Q4_K_M.gguf", "config.json"])
def test_a_directory_of_another_kind_is_refused_although_it_has_no_config(tmp_path, name):
    (tmp_path / name).write_text(POINTER)
    with pytest.raises(PlanError, match=f"{name} is (that of a PEFT|a GGUF|a pointer)"):
        find_model(compose_config([f"model.path={tmp_path}"]))


def test_a_tokenizer_of_another_model_is_refused(model):
    with pytest.raises(PlanError, match="the tokenizer's '<98>' is token 98, and vocab_size in .* is 98"):
        check_vocabulary(model, character_tokenizer(120))
    tokenizer = character_tokenizer()
    tokenizer.add_tokens(["<image>"])
    check_vocabulary(model, tokenizer)
    tokenizer.eos_token = "<image>"
    with pytest.raises(PlanError, match="'<image>' is token 98"):
        check_vocabulary(model, tokenizer)
