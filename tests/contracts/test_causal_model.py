"""The text part of a model with pictures is loaded, named and exported as the same model."""

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Mistral3Config,
    Mistral3ForConditionalGeneration,
    Qwen3_5Config,
    Qwen3_5ForConditionalGeneration,
)

from contracts.causal_model import load_causal
from contracts.conformance.tiny_model import make_tiny_model
from contracts.whole_model import fault_of_loading
from inference_adapters.model_parameters import model_parameters
from pipelinerl.errors import PlanError
from pipelinerl.launcher.checking.model import check_files
from trainer_adapters.checkpoint_io import copy_tokenizer, save_model

SIZES = {
    "vocab_size": 98,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 256,
    "eos_token_id": 0,
    "bos_token_id": None,
}
RECURRENT = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_num_key_heads": 1,
    "linear_num_value_heads": 2,
}
PICTURES = {"hidden_size": 32, "intermediate_size": 64}


def qwen3_5() -> Qwen3_5ForConditionalGeneration:
    pictures = PICTURES | {"depth": 1, "num_heads": 2, "out_hidden_size": 64, "num_position_embeddings": 16}
    config = Qwen3_5Config(text_config=SIZES | RECURRENT, vision_config=pictures)
    return Qwen3_5ForConditionalGeneration(config)


def mistral_3(kind: str, tied: bool) -> Mistral3ForConditionalGeneration:
    pictures = PICTURES | {"model_type": "pixtral", "num_hidden_layers": 1, "num_attention_heads": 2}
    text = SIZES | {"model_type": kind, "tie_word_embeddings": tied}
    pictures |= {"head_dim": 16, "image_size": 28, "patch_size": 14}
    config = Mistral3Config(text_config=text, vision_config=pictures, tie_word_embeddings=tied)
    return Mistral3ForConditionalGeneration(config)


MADE = {
    "qwen3_5": qwen3_5,
    "mistral_small_3": lambda: mistral_3("mistral", tied=False),
    "ministral_3": lambda: mistral_3("ministral3", tied=True),
}


@pytest.fixture(params=MADE)
def published(request, tmp_path):
    """Returns the whole model, and its directory."""
    torch.manual_seed(0)
    model = MADE[request.param]().eval()
    make_tiny_model(tmp_path / "model")  # for its tokenizer
    model.save_pretrained(tmp_path / "model")
    return model, tmp_path / "model"


@torch.no_grad()
def test_the_text_part_computes_what_the_whole_does_of_text(published, tmp_path):
    whole, directory = published
    text, report = load_causal(str(directory))
    assert fault_of_loading(text, report) is None
    ids = torch.arange(3, 30)[None]
    assert torch.allclose(text(ids).logits, whole(ids).logits, atol=1e-5)

    names = dict(text.named_parameters())
    shapes, tied = model_parameters(str(directory))
    assert shapes == {name: tuple(parameter.shape) for name, parameter in names.items()}
    assert all(
        name.startswith(("model.layers.", "model.embed_tokens.", "model.norm.", "lm_head.")) for name in names
    )
    assert bool(tied) == text.config.tie_word_embeddings

    names["model.norm.weight"].add_(1)  # so that it is not what the directory has
    save_model(text, names, str(directory), tmp_path / "export")
    exported, told = AutoModelForCausalLM.from_pretrained(tmp_path / "export", output_loading_info=True)
    assert not any(told.values()), told
    assert torch.equal(exported(ids).logits, text(ids).logits)

    copy_tokenizer(str(directory), tmp_path / "export")
    read, right = (AutoTokenizer.from_pretrained(path) for path in (tmp_path / "export", directory))
    assert read("Two words: 12.").input_ids == right("Two words: 12.").input_ids


def test_a_plan_takes_it_and_names_what_lacks(published):
    whole, directory = published
    check_files(directory)
    state = whole.state_dict()
    lost = next(name for name in state if name.endswith("mlp.up_proj.weight"))
    whole.save_pretrained(directory, state_dict={name: t for name, t in state.items() if name != lost})
    with pytest.raises(PlanError, match=r"layers\.0\.mlp\.up_proj\.weight is not in its files"):
        check_files(directory)
