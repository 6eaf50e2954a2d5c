"""PlainTrainer: a complete trainer adapter in plain PyTorch over a Hugging Face model.

Every rank holds the full model and optimizer, so it is for models that fit. Gradients are summed over ranks
once, in `step`. Sequences of a pack run one at a time, which is simple, exact and slow.

    python -m contracts.conformance trainer --adapter examples.plain_trainer.PlainTrainer --ranks 2
"""

import math
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM, AutoTokenizer

from contracts.inference import Parameter
from contracts.trainer import (
    OptimizerSpec,
    PackedBatch,
    SaveHandle,
    StepReport,
    TokenScores,
    TrainerWorker,
    WorkerSpec,
)
from contracts.weights import WeightManifest, connected_store, listening_store


class Saved(SaveHandle):
    def wait(self) -> None:
        """Returns at once: the checkpoint was complete when `save` returned."""


class PlainTrainer(TrainerWorker):
    def __init__(self, *, logits_chunk: int = 512):
        self._logits_chunk = logits_chunk  # tokens whose logits exist at the same time

    def init_worker(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self.device = torch.device("cpu")
        if spec.device == "cuda":
            self.device = torch.device("cuda", spec.rank % torch.cuda.device_count())
            torch.cuda.set_device(self.device)
        make_store = listening_store if spec.rank == 0 else connected_store
        dist.init_process_group(
            "nccl" if spec.device == "cuda" else "gloo",
            store=make_store(spec.master_address, spec.master_port, spec.timeout_s),
            rank=spec.rank,
            world_size=spec.world_size,
            timeout=timedelta(seconds=spec.timeout_s),
        )
        torch.manual_seed(spec.seed)
        model = AutoModelForCausalLM.from_pretrained(spec.model_path, dtype=torch.float32)
        self._model = model.to(self.device)
        self._check_head()
        self._closed_steps = 0
        self.reset_optimizer()

    def close(self) -> None:
        dist.destroy_process_group()

    # --- scores -------------------------------------------------------------------------------

    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        batch = batch.to(self.device)
        predicted = (batch.position_ids > 0).nonzero().squeeze(1)  # tokens with one before them
        zeros = torch.zeros(batch.num_tokens, device=self.device)  # of a first token: nothing is before it
        with torch.set_grad_enabled(grad):
            before = self._hidden(batch)[predicted - 1]
            scores = self._score(before, batch.token_ids[predicted], batch.temperature[predicted])
            logprobs, entropies = (zeros.index_copy(0, predicted, score) for score in scores)
        return TokenScores(logprobs, entropies if entropy else None)

    def _hidden(self, batch: PackedBatch) -> torch.Tensor:
        """Returns `[T, hidden]` states. Sequences run one by one, so neighbours are not seen."""
        head = self._model.get_output_embeddings()
        states = [torch.zeros(0, head.in_features, device=self.device)]
        for token_ids in batch.token_ids.split(batch.cu_seqlens.diff().tolist()):
            states.append(self._states(token_ids))
        return torch.cat(states)

    def _states(self, token_ids: torch.Tensor) -> torch.Tensor:
        return self._model.get_decoder()(token_ids[None], use_cache=False).last_hidden_state[0]

    @torch.no_grad()
    def _check_head(self) -> None:
        """Raises ValueError for a model that does more to its logits than its head does."""
        token_ids = torch.arange(16, device=self.device)
        own = self._model(token_ids[None], use_cache=False).logits[0].log_softmax(-1)
        scored = self._model.get_output_embeddings()(self._states(token_ids)).log_softmax(-1)
        if not (apart := (own - scored).abs().max()) < 1e-3:
            raise ValueError(f"{type(self._model).__name__}: scores differ from its own by {apart:.2g} nats")

    def _score(
        self, hidden: torch.Tensor, token_ids: torch.Tensor, temperature: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Scores chunk by chunk; backward computes a chunk's logits again in place of keeping them.

        Entropies have logits of their own: those that are computed again would be kept for a score that no
        loss uses.
        """
        head = self._model.get_output_embeddings()
        chunks = zip(*(x.split(self._logits_chunk) for x in (hidden, token_ids, temperature)), strict=True)
        scores = [
            [checkpoint(score, head, *chunk, use_reentrant=False) for score in (logprobs_of, entropies_of)]
            for chunk in chunks
        ]
        logprobs, entropies = zip(*scores, strict=True)
        return torch.cat(logprobs), torch.cat(entropies)

    # --- learning -----------------------------------------------------------------------------

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def step(self) -> StepReport:
        spec, parameters = self._spec.optimizer, list(self._model.parameters())
        for parameter in parameters:
            if parameter.grad is None:  # a rank without work adds zero
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)  # the sum over ranks
        norm = torch.nn.utils.clip_grad_norm_(parameters, spec.max_grad_norm).item()  # before clipping
        rate = learning_rate(spec, self._closed_steps)
        if finite := math.isfinite(norm):
            self._optimizer.param_groups[0]["lr"] = rate
            self._optimizer.step()
        self._optimizer.zero_grad()
        self._closed_steps += 1
        return StepReport(grad_norm=norm, learning_rate=rate, skipped=not finite)

    def reset_optimizer(self) -> None:
        spec = self._spec.optimizer
        self._optimizer = torch.optim.AdamW(
            self._model.parameters(), spec.lr, spec.betas, spec.eps, spec.weight_decay
        )

    # --- weights ------------------------------------------------------------------------------

    def weight_manifest(self, dtype: str) -> WeightManifest:
        names = {parameter: name for name, parameter in self._model.named_parameters()}
        every = self._model.named_parameters(remove_duplicate=False)
        return WeightManifest(
            parameters=tuple(Parameter(name=n, dtype=dtype, shape=tuple(p.shape)) for p, n in names.items()),
            tied={name: names[parameter] for name, parameter in every if name != names[parameter]},
        )

    def gather_weights(self) -> Iterator[tuple[str, torch.Tensor | None]]:
        for name, parameter in self._model.named_parameters():
            copy = parameter.detach().clone(memory_format=torch.contiguous_format)
            yield name, copy if self._spec.rank == 0 else None

    # --- checkpoints --------------------------------------------------------------------------

    def save(self, directory: Path) -> SaveHandle:
        if self._spec.rank == 0:
            directory.mkdir(parents=True, exist_ok=True)
            state = {
                "model": self._model.state_dict(),
                "optimizer": self._optimizer.state_dict(),
                "closed_steps": self._closed_steps,
            }
            torch.save(state, directory / "state.partial")
            (directory / "state.partial").replace(directory / "state.pt")  # whole, or the former one
        dist.barrier()
        return Saved()

    def load(self, directory: Path) -> None:
        state = torch.load(directory / "state.pt", map_location=self.device)
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._closed_steps = state["closed_steps"]

    def export(self, directory: Path) -> None:
        if self._spec.rank == 0:
            self._model.save_pretrained(directory)
            AutoTokenizer.from_pretrained(self._spec.model_path).save_pretrained(directory)
        dist.barrier()


def logprobs_of(
    head: torch.nn.Module,
    hidden: torch.Tensor,  # [C, hidden], of the token before
    token_ids: torch.Tensor,  # [C]
    temperature: torch.Tensor,  # [C] float32
) -> torch.Tensor:
    """Returns each token's log-probability, `[C]`."""
    log_p = (head(hidden).float() / temperature[:, None]).log_softmax(-1)  # [C, vocab]
    return log_p.gather(1, token_ids[:, None]).squeeze(1)


def entropies_of(
    head: torch.nn.Module, hidden: torch.Tensor, token_ids: torch.Tensor, temperature: torch.Tensor
) -> torch.Tensor:
    """Returns the entropy of each token's distribution, `[C]`."""
    log_p = (head(hidden).float() / temperature[:, None]).log_softmax(-1)  # [C, vocab]
    return -(log_p.exp() * log_p).sum(-1)


def learning_rate(spec: OptimizerSpec, closed_steps: int) -> float:
    """Returns the rate: linear warm-up from lr / warmup_steps, then constant or decaying to 0."""
    if closed_steps < spec.warmup_steps:
        return spec.lr * (closed_steps + 1) / spec.warmup_steps
    if spec.decay_steps is None:
        return spec.lr
    return spec.lr * max(0.0, 1 - (closed_steps - spec.warmup_steps) / spec.decay_steps)
