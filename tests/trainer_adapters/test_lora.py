"""Low-rank adapters behind the contract: what checkpoints and exports hold of them. That gradients, steps and
weights of servers are those of plain torch is for the kit to prove (tests/conformance)."""

import json
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from peft import PeftModel, get_peft_model_state_dict
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from contracts.conformance.trainer.reference import Reference
from contracts.trainer import TrainerWorker
from tests.ports import free_port
from tests.trainer_adapters import reference
from tests.trainer_adapters.models import SIZES, VOCAB, make_model, make_sequences
from tests.trainer_adapters.workers import (
    LENGTHS,
    LORA,
    accumulate,
    backend,
    pack,
    run_ranks,
    started,
    train,
    weights_of,
)
from trainer_adapters.fsdp import FSDPTrainer
from trainer_adapters.lora import LoRA

SCALE = 2.0


def step(worker: TrainerWorker, number: int, rank: int, size: int) -> None:
    accumulate(worker, [make_sequences(LENGTHS, seed=number)[rank::size]])
    worker.step()


# --- jobs of a rank ---------------------------------------------------------------------------


def learn(rank: int, size: int, name: str, port: int, model: str, out: Path) -> dict:
    """Makes two steps, and saves between them."""
    with started(backend(name), model, rank, size, port) as worker:
        first = weights_of(worker)
        step(worker, 0, rank, size)
        worker.save(out / "step").wait()
        step(worker, 1, rank, size)
        worker.export(out / "export")
        factors = {n: (f.a.cpu().clone(), f.b.cpu().clone()) for n, f in worker.gather_low_rank() if f}
        return {"first": first, "weights": weights_of(worker), "factors": factors}


def refusal(rank: int, size: int, port: int, model: str, checkpoint: Path) -> str:
    """Returns why a rank does not load a checkpoint."""
    with started(FSDPTrainer(lora=LORA), model, rank, size, port) as worker:
        try:
            worker.load(checkpoint)
        except ValueError as error:
            return str(error)
    return ""


# --- weights ----------------------------------------------------------------------------------


def learned(models: dict[str, str], out: Path, name: str) -> tuple[dict, Path]:
    return run_ranks(2, learn, out, name, free_port(), models["qwen2"], out)[0], out


@pytest.fixture(scope="module")
def fsdp(models, tmp_path_factory) -> tuple[dict, Path]:
    """Results of rank 0 of two, and where checkpoint and export are."""
    return learned(models, tmp_path_factory.mktemp("fsdp"), "fsdp-lora")


def assert_merged(result: dict, base: reference.Tensors) -> None:
    """Checks that weights were the base's at first, and are now merged from it, or the same bit for bit."""
    reference.assert_close(result["first"], base, tolerance=0)
    assert list(result["weights"]) == list(base)
    assert len(result["factors"]) == 14
    for name, weight in result["weights"].items():
        if name not in result["factors"]:
            assert torch.equal(weight, base[name]), name
            continue
        a, b = result["factors"][name]
        assert a.shape[0] == b.shape[1] == LORA["rank"]
        assert not torch.equal(weight, base[name])
        merged = base[name].double() + SCALE * b.double() @ a.double()
        torch.testing.assert_close(weight, merged.float(), atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ["fsdp-bf16-lora", pytest.param("zero3-bf16-lora", marks=pytest.mark.long)])
def test_in_bfloat16_the_base_stays_and_they_are_merged_in_float32(models, tmp_path, name):
    result, _ = learned(models, tmp_path, name)
    assert_merged(result, Reference(models["qwen2"]).weights())


def test_targets_are_those_that_are_named(models):
    with started(FSDPTrainer(lora={**LORA, "targets": ["q_proj", "up_proj"]}), models["llama"]) as worker:
        assert [name.split(".")[-2] for name, _ in worker.gather_low_rank()] == ["q_proj", "up_proj"] * 2


def test_experts_and_routers_of_a_mixture_stay_as_they_are(tmp_path):
    """Both are no `torch.nn.Linear` in transformers."""
    torch.manual_seed(1)
    config = Qwen3MoeConfig(
        vocab_size=VOCAB,
        num_hidden_layers=2,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        head_dim=8,
        initializer_range=0.2,
        **SIZES,
    )
    Qwen3MoeForCausalLM(config).save_pretrained(tmp_path)
    base = Reference(str(tmp_path)).weights()
    with started(FSDPTrainer(lora=LORA), str(tmp_path)) as worker:
        train(worker, range(2))
        weights = weights_of(worker)
        scores = worker.forward(pack(make_sequences(LENGTHS)), grad=False).logprobs
    changed = {name.split(".")[-2] for name in weights if not torch.equal(weights[name], base[name])}
    assert changed == {"q_proj", "k_proj", "v_proj", "o_proj"}
    merged = Reference(str(tmp_path))
    merged.put(weights)
    torch.testing.assert_close(scores, merged.scores(make_sequences(LENGTHS)).logprobs, atol=2e-5, rtol=0)


# --- checkpoints ------------------------------------------------------------------------------


def test_a_checkpoint_has_no_base(fsdp):
    keys = dcp.FileSystemReader(fsdp[1] / "step").read_metadata().state_dict_metadata
    weights = [key for key in keys if key.startswith("model.")]
    assert len(weights) == 2 * 14
    assert all(key.endswith(("lora_A.default.weight", "lora_B.default.weight")) for key in weights)
    assert len([key for key in keys if key.startswith("optimizer.exp_avg.")]) == len(weights)


@pytest.mark.parametrize(
    ("lora", "says"),
    [
        ({"rank": 2, "alpha": 8}, r"was written with lora\.rank=4, and this trainer has 2$"),
        ({"rank": 4, "alpha": 6.5}, r"was written with lora\.alpha=8, and this trainer has 6\.5$"),
        (
            {**LORA, "targets": ["q_proj", "v_proj"]},
            r"lora\.targets=down_proj, gate_proj, .*, and this trainer has q_proj, v_proj$",
        ),
        (None, r"was written with lora=\{rank: 4, alpha: 8\}, and this trainer has lora=null$"),
    ],
)
def test_a_checkpoint_of_other_adapters_is_refused_in_one_line(models, fsdp, lora, says):
    with (
        started(FSDPTrainer(lora=lora), models["qwen2"]) as worker,
        pytest.raises(ValueError, match=rf"^[^\n]*step {says}" if says.startswith("was") else says) as error,
    ):
        worker.load(fsdp[1] / "step")
    assert "\n" not in str(error.value)


def test_a_checkpoint_of_another_base_is_refused_on_every_rank(models, fsdp, tmp_path):
    other = make_model(tmp_path / "other", "qwen2")
    model = AutoModelForCausalLM.from_pretrained(other)
    model.get_parameter("model.norm.weight").data[3] += 1e-6
    model.save_pretrained(other)
    said = run_ranks(2, refusal, tmp_path, free_port(), other, fsdp[1] / "step")
    assert said == [f"{fsdp[1] / 'step'} has the adapters of another base model"] * 2


# --- export -----------------------------------------------------------------------------------


def test_the_export_is_merged_and_peft_reads_its_adapter(models, fsdp):
    result, out = fsdp
    merged = Reference(str(out / "export"))
    reference.assert_close(merged.weights(), result["weights"], tolerance=0)
    assert sorted(path.name for path in (out / "export" / "adapter").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    config = json.loads((out / "export" / "adapter" / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["lora_dropout"]) == (4, 8, 0.0)
    assert config["base_model_name_or_path"] == models["qwen2"]
    adapted = PeftModel.from_pretrained(Reference(models["qwen2"]).model, out / "export" / "adapter")
    tensors = load_file(out / "export" / "adapter" / "adapter_model.safetensors")
    assert tensors.keys() == get_peft_model_state_dict(adapted).keys()  # others read no other names
    tokens = torch.arange(20)[None]
    with torch.no_grad():
        plain, logits, own = (
            m(tokens).logits for m in (Reference(models["qwen2"]).model, adapted, merged.model)
        )
    torch.testing.assert_close(logits, own, atol=2e-5, rtol=0)
    assert (logits - plain).abs().max() > 0.1


# --- options ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lora", "says"),
    [
        ({"rank": 0, "alpha": 8}, "lora.rank must be a positive whole number, not 0"),
        ({"rank": 4, "alpha": 0}, "lora.alpha must be a positive number, not 0"),
        ({"rank": 4, "alpha": float("inf")}, "lora.alpha must be a positive number, not inf"),
        ({"rank": 4}, "lora.alpha must be set, for example lora={rank: 16, alpha: 32}"),
        (8, "lora must be null or have rank and alpha, not 8"),
        (
            {**LORA, "modules_to_save": ["lm_head"]},
            "lora.modules_to_save cannot be set: lora has rank, alpha, targets alone",
        ),
        ({**LORA, "targets": []}, "lora.targets must be all-linear or a list of names, not ()"),
        ({**LORA, "targets": [3]}, "lora.targets must be all-linear or a list of names, not (3,)"),
    ],
)
def test_bad_settings_are_refused_in_one_line(lora, says):
    with pytest.raises(ValueError) as error:
        FSDPTrainer(lora=lora)
    assert str(error.value) == says


NOT_THERE = (
    "has no linear layer lm_head in its decoder layers, which lora.targets names; it has q_proj, k_proj, "
    "v_proj, o_proj, gate_proj, up_proj, down_proj"
)


def test_targets_that_match_nothing_are_refused_before_the_start_and_at_it(models):
    trainer = FSDPTrainer(lora={**LORA, "targets": ["q_proj", "lm_head"]})
    assert trainer.unfit(models["llama"]) == f"llama {NOT_THERE}"
    assert FSDPTrainer(lora={**LORA, "targets": ["q_proj"]}).unfit(models["llama"]) is None
    with pytest.raises(ValueError, match=f"^LlamaForCausalLM {NOT_THERE}$"):
        LoRA.of({**LORA, "targets": ["lm_head"]}).inject(Reference(models["llama"]).model)


def test_without_peft_a_line_says_what_to_install(monkeypatch):
    assert FSDPTrainer(lora=LORA).missing is None
    monkeypatch.setattr("trainer_adapters.hugging_face_trainer.find_spec", lambda _: None)
    assert FSDPTrainer().missing is None
    assert FSDPTrainer(lora=LORA).missing == (
        "peft is not installed, which trainer.lora needs: pip install -e '.[lora]'"
    )
