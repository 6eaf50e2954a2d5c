"""The reference results: plain Hugging Face on the CPU, float32, eager attention, one sequence at a time."""

import torch

from contracts.causal_model import load_causal
from contracts.conformance.trainer.rank_programs import Factors, Tensors
from contracts.conformance.trainer.sequences import objective
from contracts.conformance.verdicts import GuaranteeError
from contracts.records import TrainingSequence
from contracts.trainer import OptimizerSpec, PackedBatch, TokenScores


class Reference:
    """Scores and differentiates a model with any weights that a worker gathered.

    All weights are trained. `LowRankReference` is for workers that train low-rank factors.
    """

    def __init__(self, path: str):
        self.path = path
        self.model, _ = load_causal(path, dtype=torch.float32, attn_implementation="eager")

    @property
    def trains(self) -> str:
        """What is trained, for messages."""
        return "all weights"

    @property
    def context(self) -> int:
        """The longest sequence, in tokens, that the model accepts."""
        return getattr(self.model.config.get_text_config(), "max_position_embeddings", None) or 2048

    def weights(self) -> Tensors:
        """Returns a copy of the model's weights by name, tied ones once."""
        return {name: parameter.detach().clone() for name, parameter in self.model.named_parameters()}

    def groups(self) -> dict[torch.nn.Parameter, list[str]]:
        """Returns the names of each parameter.

        A tied parameter has several, of which transformers uses the first.
        """
        groups: dict[torch.nn.Parameter, list[str]] = {}
        for name, parameter in self.model.named_parameters(remove_duplicate=False):
            groups.setdefault(parameter, []).append(name)
        return groups

    def named(self, weights: Tensors) -> Tensors:
        """Returns `weights` under the names of `weights()`; a tied weight may have any of its names.

        Raises GuaranteeError if a parameter is missing.
        """
        named = {}
        for names in self.groups().values():
            there = [name for name in names if name in weights]
            if not there:
                raise GuaranteeError(
                    f"gather_weights yields no {names[0]}, so that nothing can be compared",
                    "every parameter of the Hugging Face model",
                    f"list(worker.gather_weights()) on rank 0, for the model {self.model.config.model_type}",
                )
            named[names[0]] = weights[there[0]]
        return named

    def trained(self, weights: Tensors, factors: Factors) -> Tensors:
        """Returns the trained tensors by name. Raises GuaranteeError if gathered ones are incomplete."""
        return self.named(weights)

    def values(self) -> Tensors:
        """Returns a copy of the trained tensors."""
        return self.weights()

    def parameters(self) -> list[torch.nn.Parameter]:
        """Returns the trained parameters."""
        return list(self.model.parameters())

    @torch.no_grad()
    def put(self, weights: Tensors) -> None:
        """Replaces the trained tensors."""
        named = self.named(weights)
        for parameter, names in self.groups().items():
            parameter.copy_(named[names[0]])

    def scores(self, sequences: list[TrainingSequence], temperature: float | None = None) -> TokenScores:
        """Returns `[T]` log-probabilities and entropies in nats.

        Each sequence is scored at its own temperature unless one is given.
        """
        logprobs = [torch.zeros(0)]
        entropy = [torch.zeros(0)]
        for sequence in sequences:
            ids = torch.from_numpy(sequence.token_ids).long()
            logits = self.model(ids[None], use_cache=False).logits[0, :-1]
            log_p = (logits / (temperature or sequence.temperature)).log_softmax(-1)
            first = torch.zeros(1)
            logprobs += [first, log_p.gather(1, ids[1:, None]).squeeze(1)]
            entropy += [first, -(log_p.exp() * log_p).sum(-1)]
        return TokenScores(torch.cat(logprobs), torch.cat(entropy))

    def gradients(
        self, sequences: list[TrainingSequence], scale: float = 1.0, entropy: bool = True
    ) -> Tensors:
        """Returns the gradient of the plain sum, which is also left in `.grad` of the trained parameters."""
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        if sequences:
            batch = PackedBatch.pack(sequences)
            (objective(self.scores(sequences), batch, entropy) * scale).backward()
        gradients = {}
        for name, parameter in self.model.named_parameters():
            assert parameter.grad is not None
            gradients[name] = parameter.grad.clone()
        return gradients

    def adamw(self, spec: OptimizerSpec) -> torch.optim.AdamW:
        """Returns torch's AdamW of the trained parameters."""
        return torch.optim.AdamW(self.parameters(), spec.lr, spec.betas, spec.eps, spec.weight_decay)


def learning_rate(spec: OptimizerSpec, closed_steps: int) -> float:
    """Returns the learning rate of the step after `closed_steps` others.

    With linear warm-up, the first step has lr / warmup_steps. With linear decay, the step after the warm-up
    has lr.
    """
    if closed_steps < spec.warmup_steps:
        return spec.lr * (closed_steps + 1) / spec.warmup_steps
    if spec.decay_steps is None:
        return spec.lr
    return spec.lr * max(0.0, 1 - (closed_steps - spec.warmup_steps) / spec.decay_steps)
