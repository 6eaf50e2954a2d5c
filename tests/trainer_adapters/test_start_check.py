"""A trainer compares its scores with the model's own logits at start, and refuses a scorer that is wrong."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel, T5Config

from contracts.support.ports import ReservedPort
from tests.ports import free_port
from tests.trainer_adapters.architectures import difference, tiny_config, tiny_model
from tests.trainer_adapters.workers import backend, run_ranks, started
from trainer_adapters import attention, token_scores
from trainer_adapters.checkpoint_io import load_model
from trainer_adapters.fsdp import FSDPTrainer
from trainer_adapters.logit_form import LogitForm
from trainer_adapters.start_check import check_batch, check_scores
from trainer_adapters.token_scores import TokenScorer

SOUND = {
    "a window on every layer": "mistral",
    "a window on some layers": "gemma3_text",
    "a composite config": "gemma4_unified",
    "experts": "qwen3_moe",
    "keys longer than values": "deepseek_v3",
}


@pytest.mark.parametrize("kind", SOUND)
def test_a_sound_model_is_accepted(kind):
    assert difference(tiny_model(tiny_config(SOUND[kind]))) < 1e-4


@pytest.mark.parametrize(
    ("model_type", "fields", "says"),
    [
        ("mamba", {}, "has layers of class MambaBlock, which would read across"),
        ("deepseek_v4", {}, "compressed_sparse_attention, .*: such layers would read across"),
        ("phimoe", {"sliding_window": 24}, r"would be scored wrongly: .* is [\d.]+ nats from .* own logits"),
        ("moshi", {}, "MoshiAttention is not given where sequences begin"),
    ],
)
def test_a_model_that_would_be_scored_wrongly_is_refused_in_a_line(model_type, fields, says):
    with pytest.raises(ValueError, match=says) as refusal:
        difference(tiny_model(tiny_config(model_type, **fields)))
    assert "\n" not in str(refusal.value)


def test_a_window_as_long_as_the_context_bounds_nothing():
    config = tiny_config("phimoe", sliding_window=4096, max_position_embeddings=4096)
    assert difference(tiny_model(config)) < 1e-4


@pytest.mark.parametrize(
    "rope", [{"rope_type": "dynamic", "factor": 2.0}, {"rope_type": "longrope", "long_factor": [2.0] * 8}]
)
def test_a_sequence_that_changes_the_positions_of_others_is_refused(rope):
    """The first 52 tokens of the check's pack are scored alike as long as no sequence is longer than 64."""
    rope = {"rope_theta": 10_000.0, "short_factor": [1.0] * 8} | rope
    config = tiny_config("llama", max_position_embeddings=64, rope_parameters=rope)
    model = tiny_model(config)
    assert difference(model) < 1e-4

    scorer = TokenScorer(model, fp32_head=True, logits_chunk=64)
    with pytest.raises(ValueError, match="a sequence of 103 tokens: .* longer than 64"):
        scorer(later_positions(check_batch(model)), False)


def test_a_model_whose_weights_are_not_finite_is_said_to_be_that():
    model = tiny_model(tiny_config("llama"))
    with torch.no_grad():
        next(model.model.layers[0].mlp.parameters()).fill_(torch.nan)
    with pytest.raises(ValueError, match="log-probabilities that are NaN or infinite: its weights are"):
        difference(model)


# --- scorers that are wrong on purpose --------------------------------------------------------


class Wrong(TokenScorer):
    """A scorer whose batch is changed before it is scored; the model's own forward has the right one."""

    change: Callable

    def forward(self, batch, entropy, own=False):
        return super().forward(batch if own else type(self).change(batch), entropy, own)


def one_sequence(batch):
    return replace(batch, cu_seqlens=batch.cu_seqlens[[0, -1]])


def later_positions(batch):
    return replace(batch, position_ids=batch.position_ids * 2)


def one_temperature(batch):
    return replace(batch, temperature=torch.ones_like(batch.temperature))


def forget_windows(monkeypatch) -> None:
    """Attention that is not told of its window, as that of a model that masks instead."""
    padded = attention._padded
    monkeypatch.setattr(attention, "_padded", lambda *rows: padded(*rows[:-1], None))


def assert_found_wrong(model: PreTrainedModel, scorer: TokenScorer) -> None:
    with pytest.raises(ValueError, match="would be scored wrongly"):
        dtype = next(model.parameters()).dtype
        check_scores(model, lambda b, own: scorer(b, True, own), dtype, torch.device("cpu"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("change", [one_sequence, later_positions, one_temperature])
def test_a_wrong_batch_is_caught(change, dtype):
    model = tiny_model(tiny_config("qwen3")).to(dtype)
    scorer = type("Changed", (Wrong,), {"change": change})(model, fp32_head=True, logits_chunk=64)
    assert_found_wrong(model, scorer)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("model_type", "fields", "left_out"),
    [
        ("gemma4_unified", {"final_logit_softcapping": 5.0}, "form"),
        ("cohere", {}, "form"),
        ("granite", {"logits_scaling": 8.0}, "form"),
        ("mistral", {}, "window"),
        ("gemma3_text", {}, "window"),
    ],
)
def test_a_part_that_the_scorer_leaves_out_is_caught(monkeypatch, model_type, fields, left_out, dtype):
    if left_out == "window":
        forget_windows(monkeypatch)
    else:
        monkeypatch.setattr(token_scores, "logit_form", lambda config: LogitForm())
    model = tiny_model(tiny_config(model_type, **fields)).to(dtype)
    assert_found_wrong(model, TokenScorer(model, fp32_head=True, logits_chunk=64))


@pytest.mark.parametrize("fp32_head", [True, False])
def test_bfloat16_alone_is_no_difference(fp32_head):
    model = tiny_model(tiny_config("qwen3")).to(torch.bfloat16)
    scorer = TokenScorer(model, fp32_head=fp32_head, logits_chunk=64)
    found = check_scores(model, lambda b, own: scorer(b, True, own), torch.bfloat16, torch.device("cpu"))
    assert 1e-4 < found < 0.1


def test_the_check_leaves_the_model_as_it_was():
    model = tiny_model(tiny_config("mistral"))
    fields = model.config.to_dict()
    difference(model)
    assert model.config.to_dict() == fields and model.config._attn_implementation == attention.PACKED
    assert "forward" not in vars(model.get_output_embeddings())


# --- in a trainer -----------------------------------------------------------------------------


def make_windowed(path: Path) -> str:
    """A model that masks by a window and does not tell its attention."""
    tiny_model(tiny_config("phimoe", sliding_window=24)).save_pretrained(path)
    return str(path)


def test_a_config_tells_without_weights(tmp_path):
    tiny_config("deepseek_v4").save_pretrained(tmp_path)
    assert FSDPTrainer().unfit(str(tmp_path)).startswith("deepseek_v4 has compressed_sparse_attention")
    tiny_config("gemma3_text").save_pretrained(tmp_path)
    assert FSDPTrainer().unfit(str(tmp_path)) is None
    tiny_config("gpt2").save_pretrained(tmp_path)
    assert "gpt2 has no list of decoder layers" in FSDPTrainer().unfit(str(tmp_path))
    T5Config().save_pretrained(tmp_path)
    assert "t5 cannot be made from config.json: Unrecognized" in FSDPTrainer().unfit(str(tmp_path))


@pytest.mark.parametrize("method", ["fp8", "gptq", "awq"])
def test_a_quantised_model_is_refused_because_its_export_would_have_codes(models, tmp_path, method):
    """What is written would be codes without scales, and a config that does not tell of them."""
    shutil.copytree(models["qwen2"], tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    config["quantization_config"] = {"quant_method": method, "bits": 4, "group_size": 128}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    assert FSDPTrainer().unfit(str(tmp_path / "model")).startswith("qwen2 is quantised")
    with pytest.raises(ValueError, match="qwen2 in .* is quantised .*extensions.tools.dequantise"):
        load_model(str(tmp_path / "model"), 0)


def refused_by(rank: int, world_size: int, path: str, name: str, port: int) -> str:
    """Returns what a rank of a backend says of the model; "" where it starts."""
    try:
        with started(backend(name), path, rank, world_size, port):
            return ""
    except ValueError as error:
        return str(error)


@pytest.mark.engines
@pytest.mark.parametrize("name", ["fsdp-bf16", "zero2", "zero3-bf16"])
def test_every_rank_of_every_backend_refuses_with_sharded_weights(tmp_path, name):
    with ReservedPort() as port:
        model = make_windowed(tmp_path / "model")
        said = run_ranks(2, refused_by, tmp_path, model, name, port.number)
    assert said[0] == said[1] and "would be scored wrongly" in said[0]


@pytest.mark.engines
def test_every_rank_refuses_a_model_that_the_first_cannot_load(tmp_path, models):
    shutil.copytree(models["llama"], tmp_path / "model")
    weights = load_file(tmp_path / "model" / "model.safetensors")
    save_file(
        {n: w for n, w in weights.items() if "1.mlp.up" not in n}, tmp_path / "model" / "model.safetensors"
    )
    said = run_ranks(2, refused_by, tmp_path, str(tmp_path / "model"), "fsdp", free_port())
    assert said[0] == said[1] and "model.layers.1.mlp.up_proj.weight is not in its files" in said[0]
