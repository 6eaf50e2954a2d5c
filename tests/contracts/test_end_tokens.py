"""The tokens that end an answer, where the files of a model directory name different ones."""

import json

import pytest

from contracts.end_tokens import end_tokens_in
from extensions.demo.tokenizer import byte_tokenizer
from inference_adapters.transformers.engine import TransformersEngine

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
    engine = TransformersEngine(str(tmp_path), "float32", "cpu", max_batch_tokens=64, num_blocks=16)
    assert engine._eos_token_ids() == ends
