"""The backends' estimates of what they hold, against what they do hold."""

import pytest
import torch
from torch.distributed._composable import checkpoint as checkpoint_activations
from transformers import Qwen2Config, Qwen2ForCausalLM

from contracts.conformance.trainer.guarantees.t7_memory import peak_bytes
from contracts.model_shape import ModelShape
from contracts.trainer import PackedBatch
from tests.trainer_adapters.models import make_model, make_sequences
from tests.trainer_adapters.workers import started
from trainer_adapters.attention import PACKED
from trainer_adapters.fsdp import FSDPTrainer
from trainer_adapters.memory import activations, scoring
from trainer_adapters.token_scores import TokenScorer

SHAPE = ModelShape(
    layers=4, hidden_size=256, intermediate_size=1024, heads=8, kv_heads=2, head_dim=32, vocab_size=4000,
    context=1024, tied=False,
)  # fmt: skip
CHUNK, LENGTH, TOKENS = 256, 256, 2048


def scorer(dtype: torch.dtype, checkpointing: bool) -> TokenScorer:
    config = Qwen2Config(
        vocab_size=SHAPE.vocab_size,
        hidden_size=SHAPE.hidden_size,
        intermediate_size=SHAPE.intermediate_size,
        num_hidden_layers=SHAPE.layers,
        num_attention_heads=SHAPE.heads,
        num_key_value_heads=SHAPE.kv_heads,
        tie_word_embeddings=SHAPE.tied,
        attn_implementation=PACKED,
    )
    made = TokenScorer(Qwen2ForCausalLM(config).to(dtype), fp32_head=True, logits_chunk=CHUNK)
    for layer in made.layers if checkpointing else ():
        checkpoint_activations(layer)
    return made


@pytest.mark.parametrize("checkpointing", [False, True])
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


def test_fsdp_holds_its_share_of_weights_gradients_and_moments(tmp_path):
    path = make_model(tmp_path / "m", "llama")
    with started(FSDPTrainer(), path) as worker:
        batch = PackedBatch.pack(make_sequences([9, 5]))
        worker.backward(worker.forward(batch).logprobs.sum())
        trained = [parameter for _, parameter in worker._trained()]
        moments = [t for p in trained for n, t in worker._optimizer.state[p].items() if n != "step"]
        config = worker._model.config
        shape = ModelShape(
            layers=config.num_hidden_layers,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_dim=config.hidden_size // config.num_attention_heads,
            vocab_size=config.vocab_size,
            context=config.max_position_embeddings,
            tied=False,
        )
        estimate = worker.memory(shape, 1, 14)
        assert estimate["weights"] == sum(p.nbytes for p in trained)
        assert estimate["gradients"] == sum(p.grad.nbytes for p in trained)
        assert estimate["optimizer"] == sum(t.nbytes for t in moments)
        assert worker.memory(shape, 4, 14)["optimizer"] == estimate["optimizer"] // 4
