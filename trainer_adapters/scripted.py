"""ScriptedTrainer: the worked example of a trainer adapter, used by the pipeline's tests.

It is plain data-parallel PyTorch: every rank has all weights, and gradients are all-reduced. Its model is the
recurrent net over characters of the scripted inference engine:

    h_t = tanh(W h_{t-1} + b + embed[token_t]),   logits = embed @ (norm * h_t) + head_bias
"""

import io
import math
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.utils.rnn import pad_sequence

from contracts.inference import Parameter
from contracts.support.files import write_atomically
from contracts.trainer import PackedBatch, SaveHandle, StepReport, TokenScores, TrainerWorker, WorkerSpec
from contracts.weights import WeightManifest
from trainer_adapters.learning_rate import learning_rate
from trainer_adapters.off_device import OffDevice
from trainer_adapters.process_group import join_process_group

VOCABULARY = 97
HIDDEN = 8
SHAPES = {
    "model.embed_tokens.weight": (VOCABULARY, HIDDEN),
    "model.layers.0.weight": (HIDDEN, HIDDEN),
    "model.layers.0.bias": (HIDDEN,),
    "model.norm.weight": (HIDDEN,),
    "lm_head.bias": (VOCABULARY,),
}


class Saved(SaveHandle):
    def __init__(self, error: OSError | None = None):
        self._error = error

    def wait(self) -> None:
        if self._error:
            raise self._error


class ScriptedTrainer(TrainerWorker):
    needs_model = False
    offloads = True
    device = torch.device("cpu")

    def init_worker(self, spec: WorkerSpec) -> None:
        self._spec = spec
        join_process_group(spec, "gloo")
        generator = torch.Generator().manual_seed(spec.seed)
        self._weights = {
            name: (0.5 * torch.randn(shape, generator=generator)).requires_grad_()
            for name, shape in SHAPES.items()
        }
        self._steps = 0
        self._off_device = OffDevice(self.device)
        self.reset_optimizer()

    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        lengths = batch.cu_seqlens.diff().tolist()
        with torch.set_grad_enabled(grad):
            if not lengths:
                nothing = sum(weight.sum() for weight in self._weights.values()) * torch.zeros(0)
                return TokenScores(nothing, nothing if entropy else None)
            padded = pad_sequence(batch.token_ids.split(lengths), batch_first=True)  # [S, L]
            temperature = batch.temperature[batch.cu_seqlens[:-1].long()]  # [S]
            before = self._log_softmax(padded[:, :-1], temperature)  # [S, L - 1, vocabulary]
            logprobs = before.gather(-1, padded[:, 1:, None]).squeeze(-1)
            entropies = -(before.exp() * before).sum(-1)
        return TokenScores(_packed(logprobs, lengths), _packed(entropies, lengths) if entropy else None)

    def _log_softmax(self, token_ids: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
        embed, weight, bias, norm, head_bias = self._weights.values()
        state = torch.zeros(len(token_ids), HIDDEN)
        logits = []
        for column in token_ids.T:
            state = torch.tanh(state @ weight.T + bias + embed[column])
            logits.append((norm * state) @ embed.T + head_bias)
        return (torch.stack(logits, dim=1) / temperature[:, None, None]).log_softmax(-1)

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def step(self) -> StepReport:
        gradients = [weight.grad for weight in self._weights.values()]
        for gradient in gradients:
            dist.all_reduce(gradient)
        norm = float(torch.nn.utils.get_total_norm(gradients))
        rate = learning_rate(self._spec.optimizer, self._steps)
        if finite := math.isfinite(norm):
            torch.nn.utils.clip_grad_norm_(self._weights.values(), self._spec.optimizer.max_grad_norm)
            self._optimizer.param_groups[0]["lr"] = rate
            self._optimizer.step()
        self._zero_gradients()
        self._steps += 1
        return StepReport(grad_norm=norm, learning_rate=rate, skipped=not finite)

    def _zero_gradients(self) -> None:
        """Sets gradients to zero, not None, because ranks with empty batches take part in the all-reduce."""
        for weight in self._weights.values():
            weight.grad = torch.zeros_like(weight)

    def reset_optimizer(self) -> None:
        spec = self._spec.optimizer
        self._optimizer = torch.optim.AdamW(
            self._weights.values(), spec.lr, spec.betas, spec.eps, spec.weight_decay
        )
        self._zero_gradients()

    def weight_manifest(self, dtype: str) -> WeightManifest:
        parameters = tuple(Parameter(name=n, dtype=dtype, shape=s) for n, s in SHAPES.items())
        return WeightManifest(parameters, tied={"lm_head.weight": "model.embed_tokens.weight"})

    def gather_weights(self) -> Iterator[tuple[str, torch.Tensor | None]]:
        for name, weight in self._weights.items():
            yield name, weight.detach().clone() if self._spec.rank == 0 else None

    def shards(self) -> list[torch.Tensor]:
        """Returns all weights on rank 0, and an empty list on the other ranks, which have copies."""
        return [weight.detach() for weight in self._weights.values()] if self._spec.rank == 0 else []

    def adopt(self) -> None:
        for weight in self._weights.values():
            dist.broadcast(weight.detach(), src=0)

    def offload(self) -> None:
        weights = self._weights.values()
        if any(weight.grad.any() for weight in weights):
            raise RuntimeError("a gradient is accumulated: call step first")
        moments = (value for state in self._optimizer.state.values() for value in state.values())
        self._off_device.take([*weights, *(weight.grad for weight in weights), *moments])

    def onload(self) -> None:
        self._off_device.give_back()

    def save(self, directory: Path) -> SaveHandle:
        error = self._write(directory) if self._spec.rank == 0 else None
        dist.barrier()
        return Saved(error)

    def _write(self, directory: Path) -> OSError | None:
        """Writes the checkpoint. Returns the error if writing failed."""
        state = io.BytesIO()
        torch.save(
            {
                "weights": {name: weight.detach() for name, weight in self._weights.items()},
                "optimizer": self._optimizer.state_dict(),
                "steps": self._steps,
            },
            state,
        )
        try:
            directory.mkdir(parents=True, exist_ok=True)
            write_atomically(directory / "state.pt", state.getvalue())
        except OSError as error:
            return error
        return None

    @torch.no_grad()
    def load(self, directory: Path) -> None:
        state = torch.load(directory / "state.pt")
        for name, tensor in state["weights"].items():
            self._weights[name].copy_(tensor)
        self._optimizer.load_state_dict(state["optimizer"])
        self._steps = state["steps"]

    def export(self, directory: Path) -> None:
        if self._spec.rank == 0:
            directory.mkdir(parents=True, exist_ok=True)
            weights = {name: weight.detach() for name, weight in self._weights.items()}
            torch.save(weights, directory / "weights.pt")

    def close(self) -> None:
        dist.destroy_process_group()


def _packed(values: torch.Tensor, lengths: list[int]) -> torch.Tensor:
    """Returns `[S, L - 1]` scores as `[T]`, with 0 at the first token of each sequence."""
    first = torch.zeros(1)
    return torch.cat([part for row, n in zip(values, lengths, strict=True) for part in (first, row[: n - 1])])
