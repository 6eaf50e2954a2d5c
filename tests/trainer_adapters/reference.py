"""The reference for trainers: plain transformers, one sequence at a time, and plain torch AdamW."""

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from contracts.records import TrainingSequence
from contracts.trainer import OptimizerSpec, PackedBatch, TokenScores

Tensors = dict[str, torch.Tensor]


def objective(scores: TokenScores, batch: PackedBatch) -> torch.Tensor:
    """Returns the REINFORCE loss, in which every token's gradient has its own weight."""
    weights = (batch.advantages * batch.loss_weights).to(scores.logprobs.device)
    return -(scores.logprobs * weights).sum()


def load(path: str) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager")


def scores(model: PreTrainedModel, sequences: list[TrainingSequence]) -> TokenScores:
    logprobs, entropy = [torch.zeros(0)], [torch.zeros(0)]
    for sequence in sequences:
        ids = torch.from_numpy(sequence.token_ids).long()
        logits = model(ids[None], use_cache=False).logits[0, :-1] / sequence.temperature
        distribution = torch.distributions.Categorical(logits=logits, validate_args=False)
        first = torch.zeros(1)
        logprobs += [first, distribution.log_prob(ids[1:])]
        entropy += [first, distribution.entropy()]
    return TokenScores(torch.cat(logprobs), torch.cat(entropy))


def gradients(model: PreTrainedModel, sequences: list[TrainingSequence]) -> Tensors:
    model.zero_grad()
    objective(scores(model, sequences), PackedBatch.pack(sequences)).backward()
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


def weights(model: PreTrainedModel) -> Tensors:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def adamw(model: PreTrainedModel, spec: OptimizerSpec) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        model.parameters(), lr=spec.lr, betas=spec.betas, eps=spec.eps, weight_decay=spec.weight_decay
    )


def assert_close(actual: Tensors, expected: Tensors, tolerance: float = 1e-5) -> None:
    """Compares norms, tensor by tensor."""
    assert actual.keys() == expected.keys()
    for name, tensor in expected.items():
        error = (actual[name] - tensor).norm()
        assert error <= tolerance * tensor.norm(), f"{name} is off by {error / tensor.norm():.1e}"
