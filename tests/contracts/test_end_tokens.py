"""The tokens that end an answer, where the files of a model directory name different ones."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from transformers import AutoConfig, AutoTokenizer, GenerationConfig, Qwen2Config, Qwen2ForCausalLM

from contracts.end_tokens import end_tokens_in
from examples.naive_server import NaiveEngine
from extensions.demo.tokenizer import byte_tokenizer
from inference_adapters.sglang.engine import SglangEngine
from inference_adapters.sglang.options import Options
from inference_adapters.transformers.engine import TransformersEngine
from inference_adapters.vllm.end_tokens import stop_at_all_ends

TURNS = "{% for m in messages %}<|user|>{{ m.content }}{END}\n{% endfor %}"
PAD, END, SYSTEM, USER = range(4)


@pytest.mark.parametrize(
    ("template_end", "generation", "config", "right"),
    [
        ("<|end|>", PAD, PAD, {END, PAD}),  # a base model that was fine-tuned
        ("<|system|>", None, None, {END, SYSTEM}),  # a base model that was given a template
        ("<|system|>", [PAD, USER], END, {END, SYSTEM, PAD, USER}),
        ("|", None, PAD, {END, PAD}),  # the end of a turn is no special token
        ("{{ raise_exception('no answers') }}", USER, None, {END, USER}),
    ],
)
def test_every_part_that_names_an_end_is_heard(tmp_path, template_end, generation, config, right):
    tokenizer = byte_tokenizer(64)
    tokenizer.chat_template = TURNS.replace("{END}", template_end)
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2", "eos_token_id": config}))
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
    ends = end_tokens_in(str(tmp_path), tokenizer)
    assert (len(ends), set(ends)) == (len(right), right)


def told_by_each(path: str) -> dict[str, list[int]]:
    """Returns what the code of each server tells of the model directory, without starting one."""
    tokenizer = AutoTokenizer.from_pretrained(path)
    config = AutoConfig.from_pretrained(path)
    try:
        generation = GenerationConfig.from_pretrained(path)
    except OSError:  # vLLM does so too
        generation = GenerationConfig.from_model_config(config)
    vllm = SimpleNamespace(
        model_config=SimpleNamespace(hf_config=config, hf_text_config=config.get_text_config()),
        input_processor=SimpleNamespace(generation_config_fields=generation.to_diff_dict()),
        tokenizer=tokenizer,
    )
    naive = NaiveEngine(path)
    naive._load()
    transformers = TransformersEngine(path, "float32", "cpu", max_batch_tokens=64, num_blocks=16)
    sglang = SglangEngine(Options(path, 1, 64, config.vocab_size, ()), "0")
    stops = stop_at_all_ends(vllm)
    assert vllm.input_processor.generation_config_fields["eos_token_id"] == stops
    told = {engine: engine.info().end_token_ids for engine in (naive, transformers, sglang)}
    assert all(engine._ends == ends for engine, ends in told.items())
    return {type(engine).__name__: ends for engine, ends in told.items()} | {"vLLM": stops}


@pytest.fixture(scope="module")
def smallest(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("smallest")
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    config = Qwen2Config(vocab_size=300, num_key_value_heads=1, **sizes)
    Qwen2ForCausalLM(config).save_pretrained(path)
    return path


@pytest.mark.parametrize("tokenizers_end", ["<|end|>", "<|pad|>", None])
@pytest.mark.parametrize("config", [SYSTEM, None])
@pytest.mark.parametrize("generation", [USER, None])
def test_every_server_tells_the_same_ends(smallest, tokenizers_end, config, generation):
    tokenizer = byte_tokenizer(64)
    tokenizer.chat_template = TURNS.replace("{END}", "<|end|>")
    tokenizer.eos_token = tokenizers_end
    tokenizer.save_pretrained(smallest)
    written = json.loads((smallest / "config.json").read_text()) | {"eos_token_id": config}
    (smallest / "config.json").write_text(json.dumps(written))
    (smallest / "generation_config.json").unlink(missing_ok=True)
    if generation is not None:
        (smallest / "generation_config.json").write_text(json.dumps({"eos_token_id": generation}))
    named = {END, {"<|pad|>": PAD}.get(tokenizers_end), config, generation} - {None}
    told = told_by_each(str(smallest))
    assert len({tuple(ends) for ends in told.values()}) == 1, told
    assert all(set(ends) == named and len(ends) == len(named) for ends in told.values()), told
