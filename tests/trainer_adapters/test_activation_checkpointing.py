"""What backward computes again under activation checkpointing, and that it computes the same."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, MixtralConfig

from tests.trainer_adapters import reference
from tests.trainer_adapters.models import FAMILIES, SIZES, VOCAB, make_sequences
from tests.trainer_adapters.test_fsdp import gradients
from tests.trainer_adapters.workers import LENGTHS, accumulate, pack, started
from trainer_adapters.activation_checkpointing import SAVED, checkpoint_layers
from trainer_adapters.attention import PACKED
from trainer_adapters.fsdp import FSDPTrainer
from trainer_adapters.token_scores import TokenScorer

KINDS = [False, True, "selective"]
PRODUCTS = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
LAYERS = 2


class Calls(TorchDispatchMode):
    """Counts the operations that run, by name."""

    def __init__(self):
        super().__init__()
        self.of: dict[object, int] = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.of[function] = self.of.get(function, 0) + 1
        return function(*args, **(kwargs or {}))

    @property
    def products(self) -> int:
        return sum(self.of.get(product, 0) for product in PRODUCTS)

    @property
    def attentions(self) -> int:
        return sum(self.of.get(kept, 0) for kept in SAVED if kept not in PRODUCTS)

    @property
    def activation_functions(self) -> int:
        return self.of.get(torch.ops.aten.silu.default, 0)


def calls_of_learning(model: str, **options: object) -> Calls:
    with started(FSDPTrainer(**options), model) as worker:
        accumulate(worker, [make_sequences(LENGTHS)])  # the first step also allocates
        with Calls() as calls:
            accumulate(worker, [make_sequences(LENGTHS)])
    return calls


@pytest.mark.parametrize(
    ("family", "dtype"), [("qwen2", "bfloat16"), ("llama", "float32"), ("mistral", "bfloat16")]
)
def test_selective_checkpointing_computes_no_product_and_no_attention_again(models, family, dtype):
    plain, full, selective = (
        calls_of_learning(models[family], compute_dtype=dtype, activation_checkpointing=kind)
        for kind in KINDS
    )
    assert plain.attentions > 0
    assert selective.attentions == plain.attentions < full.attentions
    assert selective.products == plain.products < full.products
    assert selective.activation_functions == full.activation_functions == 2 * plain.activation_functions


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_bit_for_bit_those_without_checkpointing(models, family, dtype):
    found = []
    for kind in KINDS:
        trainer = FSDPTrainer(compute_dtype=dtype, activation_checkpointing=kind)
        with started(trainer, models[family]) as worker:
            accumulate(worker, [make_sequences(LENGTHS[:3]), [], make_sequences(LENGTHS)])
            found.append(gradients(worker))
    plain, *others = found
    for other in others:
        reference.assert_close(other, plain, tolerance=0)


def test_experts_of_a_mixture_are_computed_again_as_they_were():
    config = MixtralConfig(**SIZES, vocab_size=VOCAB, num_hidden_layers=LAYERS, num_local_experts=4)
    found = []
    for kind in KINDS:
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, attn_implementation=PACKED)
        scorer = TokenScorer(model, fp32_head=True, logits_chunk=8)
        checkpoint_layers(scorer.layers, kind)
        scorer(pack(make_sequences(LENGTHS)), False)[0].sum().backward()
        found.append({name: parameter.grad for name, parameter in model.named_parameters()})
    plain, *others = found
    for other in others:
        reference.assert_close(other, plain, tolerance=0)
