"""The backends' estimates of what they hold, against what they do hold."""

from pathlib import Path

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from contracts.conformance.trainer.guarantees.t7_memory import peak_bytes
from contracts.model_shape import ModelShape
from contracts.trainer import PackedBatch
from pipelinerl.launcher.checking.model_source import model_in
from tests.trainer_adapters.models import make_model, make_sequences
from tests.trainer_adapters.workers import started
from trainer_adapters.activation_checkpointing import Checkpointing, checkpoint_layers
from trainer_adapters.attention import PACKED
from trainer_adapters.fsdp import FSDPTrainer
from trainer_adapters.memory import activations, scoring
from trainer_adapters.token_scores import TokenScorer

SHAPE = ModelShape(
    layers=4, hidden_size=256, intermediate_size=1024, heads=8, kv_heads=2, head_dim=32, vocab_size=4000,
    context=1024, tied=False,
)  # fmt: skip
WIDE = ModelShape(
    layers=1, hidden_size=64, intermediate_size=64, heads=2, kv_heads=2, head_dim=32, vocab_size=16_000,
    context=1024, tied=False,
)  # fmt: skip
CHUNK, LENGTH, TOKENS = 256, 256, 2048


def config_of(shape: ModelShape) -> Qwen2Config:
    return Qwen2Config(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        tie_word_embeddings=shape.tied,
        attn_implementation=PACKED,
    )


def scorer(dtype: torch.dtype, checkpointing: Checkpointing) -> TokenScorer:
    model = Qwen2ForCausalLM(config_of(SHAPE)).to(dtype)
    made = TokenScorer(model, fp32_head=True, logits_chunk=CHUNK)
    checkpoint_layers(made.layers, checkpointing)
    return made


@pytest.mark.parametrize("checkpointing", [False, True, "selective"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_pass_holds_what_is_estimated(dtype, checkpointing):
    """Never more by a tenth; less where head and layers are not at their most at the same time."""
    model = scorer(dtype, checkpointing)

    def learn(tokens: int) -> None:
        batch = PackedBatch.pack(make_sequences([LENGTH] * (tokens // LENGTH), vocab=SHAPE.vocab_size))
        model(batch, False)[0].sum().backward()

    learn(LENGTH)  # gradients are there from now on
    peak = peak_bytes("cpu", lambda: learn(TOKENS))
    held = activations(SHAPE, TOKENS, dtype.itemsize, checkpointing)
    estimate = held + scoring(SHAPE, CHUNK, TOKENS, dtype.itemsize, fp32_head=True)
    assert 0.9 * peak < estimate < 1.7 * peak


@pytest.mark.parametrize(
    ("dtype", "fp32_head", "chunk"),
    [(torch.float32, True, 64), (torch.bfloat16, True, 1024), (torch.bfloat16, False, 64)],
)
def test_the_head_holds_what_is_estimated(dtype, fp32_head, chunk):
    """With a vocabulary so large that all else is small, and entropies in the loss."""
    shape = WIDE
    model = TokenScorer(Qwen2ForCausalLM(config_of(shape)).to(dtype), fp32_head=fp32_head, logits_chunk=chunk)

    def learn(tokens: int) -> None:
        batch = PackedBatch.pack(make_sequences([64] * (tokens // 64), vocab=shape.vocab_size))
        logprobs, entropies, _ = model(batch, True)
        (logprobs + entropies).sum().backward()

    learn(64)  # gradients are there from now on
    peak = peak_bytes("cpu", lambda: learn(512))
    held = activations(shape, 512, dtype.itemsize, checkpointing=False)
    estimate = held + scoring(shape, chunk, 512, dtype.itemsize, fp32_head)
    assert 0.85 * peak < estimate < 1.2 * peak


@pytest.mark.parametrize("lora", [None, {"rank": 4, "alpha": 8}])
def test_fsdp_holds_its_share_of_weights_gradients_and_moments(tmp_path, lora):
    path = make_model(tmp_path / "m", "llama")
    with started(FSDPTrainer(lora=lora), path) as worker:
        batch = PackedBatch.pack(make_sequences([9, 5]))
        worker.backward(worker.forward(batch).logprobs.sum())
        parameters = [*worker._model.parameters()]
        moments = [t for of in worker._optimizer.state.values() for n, t in of.items() if n != "step"]
        shape = model_in(Path(path)).shape
        estimate = worker.memory(shape, 1, 14)
        assert estimate["weights"] == sum(p.nbytes for p in parameters)
        assert estimate["gradients"] == sum(p.grad.nbytes for p in parameters if p.grad is not None)
        assert estimate["optimizer"] == sum(t.nbytes for t in moments)
        assert worker.memory(shape, 4, 14)["optimizer"] == estimate["optimizer"] // 4
