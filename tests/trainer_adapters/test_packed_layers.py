"""Models with more than plain attention score and learn in a pack as one sequence at a time."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from transformers.models.deepseek_v32.modeling_deepseek_v32 import DeepseekV32Indexer
from transformers.models.qwen3_5 import modeling_qwen3_5

from contracts.trainer import PackedBatch
from tests.trainer_adapters.architectures import difference, published_config, tiny_model
from trainer_adapters import attention, token_scores
from trainer_adapters.activation_checkpointing import checkpoint_layers
from trainer_adapters.compiled_layers import compile_layers
from trainer_adapters.layers import held_packing, kinds
from trainer_adapters.logit_form import LogitForm
from trainer_adapters.lora import LoRA
from trainer_adapters.start_check import check_batch, check_scores
from trainer_adapters.token_scores import TokenScorer

FAMILIES = [  # one or more of each row of the table of layers, of attention and of the head
    "qwen3_5_text",
    "qwen3_next",
    "nemotron_h",
    "falcon_h1",
    "granitemoehybrid",
    "jamba",
    "lfm2",
    "minimax",
    "gpt_oss",
    "gemma2",
    "cohere2",
    "deepseek_v32",
    "glm_moe_dsa",
    "stablelm",
]


def scorer_of(model_type: str) -> TokenScorer:
    return TokenScorer(tiny_model(published_config(model_type)), fp32_head=True, logits_chunk=64)


def gradients(scorer: TokenScorer, own: bool) -> dict[str, torch.Tensor]:
    scorer.zero_grad()
    logprobs, entropies, _ = scorer(check_batch(scorer.model), True, own)
    (logprobs.sum() + 0.1 * entropies.sum()).backward()
    return {name: p.grad.clone() for name, p in scorer.named_parameters() if p.grad is not None}


def assert_alike(packed: dict[str, torch.Tensor], own: dict[str, torch.Tensor]) -> None:
    largest = max(gradient.norm() for gradient in own.values())
    assert packed.keys() >= {name for name, gradient in own.items() if gradient.any()}
    for name, gradient in own.items():
        if name in packed:
            apart = (packed[name] - gradient).norm() / gradient.norm().clamp_min(1e-6 * largest)
            assert apart <= 1e-4, name


@pytest.mark.parametrize("recompute", [False, True, "selective"])
@pytest.mark.parametrize("model_type", FAMILIES)
def test_gradients_of_a_pack_are_those_of_single_sequences(model_type, recompute):
    """The pack has a common prefix, and sequences of one token and of other lengths."""
    scorer = scorer_of(model_type)
    own = gradients(scorer, own=True)
    checkpoint_layers(scorer.layers, recompute)
    assert_alike(gradients(scorer, own=False), own)


@pytest.mark.parametrize("model_type", ["qwen3_5_text", "gpt_oss", "lfm2"])
def test_gradients_of_adapters_too(model_type):
    scorer = scorer_of(model_type)
    LoRA(rank=4, alpha=8.0).inject(scorer.model)
    for name, parameter in scorer.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    assert_alike(gradients(scorer, own=False), gradients(scorer, own=True))


def backward_of_the_first(scorer: TokenScorer) -> dict[str, torch.Tensor]:
    """Returns the gradients of one micro-batch, whose backward follows the forward of another."""
    batch = check_batch(scorer.model)
    logprobs, entropies, _ = scorer(batch, True)
    scorer(next_batch(batch), True)
    (logprobs.sum() + 0.1 * entropies.sum()).backward()
    return {name: p.grad.clone() for name, p in scorer.named_parameters() if p.grad is not None}


def next_batch(batch: PackedBatch) -> PackedBatch:
    """Returns the same number of tokens in other sequences."""
    half = len(batch.token_ids) // 2
    positions = torch.cat([torch.arange(half), torch.arange(len(batch.token_ids) - half)])
    ends = torch.tensor([0, half, len(batch.token_ids)], dtype=torch.int32)
    return replace(batch, position_ids=positions, cu_seqlens=ends)


def test_recomputation_has_the_packing_of_its_own_micro_batch():
    scorer = scorer_of("qwen3_5_text")
    own = gradients(scorer, own=True)
    checkpoint_layers(scorer.layers, True)
    scorer.zero_grad()
    assert_alike(backward_of_the_first(scorer), own)


# --- what is left out is found ----------------------------------------------------------------


def convolved_together(x: torch.Tensor, *args: object, **kwargs: object) -> torch.Tensor:
    """A convolution that reads what stands before a sequence, whose recurrence begins there."""
    rows, channels, length = x.shape
    together = RIGHT_CONVOLUTION(x.transpose(0, 1).reshape(1, channels, rows * length), *args, **kwargs)
    return together.view(channels, rows, length).transpose(0, 1)


def padded(sinks: bool = True, bound: bool = True, window: bool = True) -> Callable:
    """Returns attention with sinks or a bound that leaves a part out."""
    right = attention._padded_otherwise

    def wrong(query, key, value, packing, scaling, its_window, its_bound, its_sinks):
        if (its_sinks is not None and not sinks) or (its_bound is not None and not bound):
            return attention._padded(query, key, value, packing, scaling, its_window)
        its_window = its_window if window else None
        return right(query, key, value, packing, scaling, its_window, its_bound, its_sinks)

    return wrong


def keys_of_another_sequence(indexer: torch.nn.Module, *args: object, **kwargs: object) -> torch.Tensor:
    return RIGHT_INDEX(indexer, *args, **kwargs).roll(1, 0)


RIGHT_CONVOLUTION = modeling_qwen3_5.causal_conv1d_fn
RIGHT_INDEX = DeepseekV32Indexer.forward
MUTANTS = {
    "mixer": ("qwen3_5_text", (kinds, "carry", lambda mixer: None)),
    "convolution": ("qwen3_5_text", (modeling_qwen3_5, "causal_conv1d_fn", convolved_together)),
    "sink": ("gpt_oss", (attention, "_padded_otherwise", padded(sinks=False))),
    "window": ("gpt_oss", (attention, "_padded_otherwise", padded(window=False))),
    "bound": ("gemma2", (attention, "_padded_otherwise", padded(bound=False))),
    "factor": ("granite", (token_scores, "logit_form", lambda config: LogitForm())),
    "indices": ("deepseek_v32", (DeepseekV32Indexer, "forward", keys_of_another_sequence)),
}


@pytest.mark.parametrize("model_type", ["qwen3_5_text", "lfm2", "mamba2"])
def test_a_leak_between_neighbours_is_found_in_bfloat16_too(model_type, monkeypatch):
    model = tiny_model(published_config(model_type)).bfloat16()
    scorer = TokenScorer(model, fp32_head=True, logits_chunk=64)
    check = partial(check_scores, dtype=torch.bfloat16, device=torch.device("cpu"))
    check(model, lambda batch, own: scorer(batch, True, own))
    leaking = tiny_model(published_config(model_type)).bfloat16()
    monkeypatch.setattr(kinds, "carry", lambda mixer: None)
    wrong = TokenScorer(leaking, fp32_head=True, logits_chunk=64)
    with pytest.raises(ValueError, match="with the tokens of other sequences|would be scored wrongly"):
        check(leaking, lambda batch, own: wrong(batch, True, own))


@pytest.mark.parametrize("kind", MUTANTS)
def test_what_a_scorer_leaves_out_is_found(kind, monkeypatch):
    model_type, wrong = MUTANTS[kind]
    model = tiny_model(published_config(model_type))
    monkeypatch.setattr(*wrong)
    with pytest.raises(ValueError, match="would be scored wrongly"):
        difference(model)


def test_a_packing_that_is_held_for_the_whole_model_is_found(monkeypatch):
    """In backward it is that of the last forward pass, whose tokens are others, or more."""
    monkeypatch.setattr(kinds, "hold_in", lambda layer: None)
    scorer = scorer_of("qwen3_5_text")
    scorer.model.get_decoder().register_forward_pre_hook(held_packing._hold, with_kwargs=True)
    own = gradients(scorer, own=True)
    checkpoint_layers(scorer.layers, True)
    scorer.zero_grad()
    with pytest.raises((AssertionError, IndexError)):
        assert_alike(backward_of_the_first(scorer), own)


# --- what such layers exclude -----------------------------------------------------------------


def test_they_are_not_compiled():
    scorer = scorer_of("lfm2")
    with pytest.raises(ValueError, match="has Lfm2ShortConv, so compile_layers=true cannot be set"):
        compile_layers(scorer.layers)


def test_adapters_that_peft_refuses_are_refused_with_those_that_remain():
    lora = LoRA(rank=4, alpha=8.0)
    says = r"has layers out_proj, which peft does not adapt: set lora.targets to some of \[in_proj, .*q_proj"
    assert re.match(says, lora.unfit(published_config("nemotron_h")))
    chosen = LoRA(rank=4, alpha=8.0, targets=("in_proj", "q_proj"))
    assert chosen.unfit(published_config("nemotron_h")) is None


def test_layers_that_peft_adapts_otherwise_are_refused_with_those_that_it_adapts():
    lora = LoRA(rank=4, alpha=8.0)
    says = lora.unfit(published_config("deepseek_v32"))
    assert says.startswith("has layers that peft adapts otherwise than asked: set lora.targets to some of [")
    targets = tuple(says.partition("[")[2].removesuffix("]").split(", "))
    assert LoRA(rank=4, alpha=8.0, targets=targets).unfit(published_config("deepseek_v32")) is None


@pytest.mark.parametrize("extra", ["s_aux", "softcap"])
def test_sinks_and_bounds_are_refused_on_cuda(extra):
    states = torch.zeros(1, 2, 4, 8)
    on_cuda = type("OnCuda", (torch.Tensor,), {"is_cuda": property(lambda self: True)})
    query = states.as_subclass(on_cuda)
    attend = partial(attention.packed_attention, torch.nn.Linear(1, 1), query, states, states, None)
    with pytest.raises(ValueError, match="attention with .* is not implemented on CUDA"):
        attend(packing=object(), scaling=1.0, **{extra: 1.0})
