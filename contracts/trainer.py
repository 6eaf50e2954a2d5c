"""The trainer contract: what a training backend must offer, as one `TrainerWorker` per rank.

Every rank calls every method in the same order. RL mathematics stays outside: `loss = objective(scores,
batch)` is plain PyTorch on `[T]` tensors, so an objective runs on every backend.
"""

import abc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field

from contracts.model_shape import ModelShape
from contracts.optimizer import OptimizerSpec as OptimizerSpec
from contracts.records import TrainingSequence
from contracts.token_fields import TokenField, check_token_fields
from contracts.weights import WeightManifest


class WorkerSpec(BaseModel):
    """The arguments with which a worker is initialised. The worker with `rank` 0 is the coordinator."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model_path: str
    optimizer: OptimizerSpec
    rank: int = 0
    world_size: int = 1
    master_address: str = "127.0.0.1"
    master_port: int = Field(29500, description="where rank 0 listens, with SO_REUSEADDR: it is reserved")
    device: Literal["cpu", "cuda"] = "cpu"
    seed: int = 0
    timeout_s: float = Field(1800, gt=0, description="longest wait of one rank for another")
    alone: bool = Field(False, description="whether it must not take part in anything outside of this run")


class TokenFields(dict[str, torch.Tensor]):
    """The tensors of the declared token fields, by name."""

    def __missing__(self, name: str) -> torch.Tensor:
        declared = ", ".join(self) or "none"
        raise KeyError(f"token_fields.{name} is not declared: add its dtype and fill (declared: {declared})")


_ARRAYS = {  # the arrays of every training sequence, and their dtypes in a batch
    "token_ids": torch.int64,
    "loss_mask": torch.bool,
    "behaviour_logprobs": torch.float32,
    "versions": torch.int64,
    "advantages": torch.float32,
}


@dataclass(frozen=True)
class PackedBatch:
    """One rank's micro-batch: sequences laid end to end, with T tokens in total. T may be 0."""

    token_ids: torch.Tensor  # [T] int64
    position_ids: torch.Tensor  # [T] int64, from 0 in each sequence
    sequence_ids: torch.Tensor  # [T] int64, index of the sequence, 0 to S - 1
    rollout_ids: torch.Tensor  # [T] int64, index of the rollout, 0 to R - 1; no rollout is split over batches
    cu_seqlens: torch.Tensor  # [S + 1] int32, offset of each sequence's first token; the last is T
    temperature: torch.Tensor  # [T] float32
    loss_mask: torch.Tensor  # [T] bool
    loss_weights: torch.Tensor  # [T] float32, weight in the step's loss; 0 where the mask is off
    behaviour_logprobs: torch.Tensor  # [T] float32
    versions: torch.Tensor  # [T] int64, version of the weights that sampled the token; -1 where not sampled
    advantages: torch.Tensor  # [T] float32
    reference_logprobs: torch.Tensor | None  # [T] float32
    num_rollouts: int  # R
    proximal_logprobs: torch.Tensor | None = None  # [T] float32, under the weights before the step
    start_values: torch.Tensor | None = None  # [T] float32, of the value head before the step
    step: int = 0  # weight version that the step starts from: a token's lag is step - versions
    token_fields: TokenFields = field(default_factory=TokenFields)  # [T] each, in the declared dtype

    @classmethod
    def pack(
        cls,
        sequences: Sequence[TrainingSequence],
        step: int = 0,
        token_fields: Mapping[str, TokenField] = {},
    ) -> "PackedBatch":
        """Returns the sequences as one batch of CPU tensors, in their order.

        `loss_weights` is 0 where a sequence's `loss_mask` is off. `reference_logprobs` is None unless every
        sequence has them. `token_fields` are the declared fields; a batch without sequences has them too.
        Raises TokenFieldError if a sequence has other fields.
        """
        for sequence in sequences:
            check_token_fields(token_fields, sequence.token_fields, len(sequence.token_ids))
        lengths = torch.tensor([len(s.token_ids) for s in sequences], dtype=torch.int64)
        rollouts = {
            rollout_id: i for i, rollout_id in enumerate(dict.fromkeys(s.rollout_id for s in sequences))
        }

        def joined(name: str, dtype: torch.dtype) -> torch.Tensor:
            parts = [getattr(s, name) for s in sequences]
            return torch.from_numpy(np.concatenate(parts)).to(dtype) if parts else torch.empty(0, dtype=dtype)

        def spread(values: list[float], dtype: torch.dtype) -> torch.Tensor:
            return torch.repeat_interleave(torch.tensor(values, dtype=dtype), lengths)

        arrays = {name: joined(name, dtype) for name, dtype in _ARRAYS.items()}
        begins = lengths.cumsum(0) - lengths
        with_reference = bool(sequences) and all(s.reference_logprobs is not None for s in sequences)
        return cls(
            **arrays,
            position_ids=torch.arange(int(lengths.sum())) - begins.repeat_interleave(lengths),
            sequence_ids=torch.repeat_interleave(lengths),
            rollout_ids=spread([rollouts[s.rollout_id] for s in sequences], torch.int64),
            cu_seqlens=torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32),
            temperature=spread([s.temperature for s in sequences], torch.float32),
            loss_weights=spread([s.loss_weight for s in sequences], torch.float32) * arrays["loss_mask"],
            reference_logprobs=joined("reference_logprobs", torch.float32) if with_reference else None,
            num_rollouts=len(rollouts),
            step=step,
            token_fields=TokenFields(
                {name: _end_to_end(sequences, name, field) for name, field in token_fields.items()}
            ),
        )

    @property
    def num_tokens(self) -> int:
        """T, the number of tokens."""
        return self.token_ids.shape[0]

    @property
    def num_sequences(self) -> int:
        """S, the number of sequences."""
        return self.cu_seqlens.shape[0] - 1

    def to(self, device: torch.device | str) -> "PackedBatch":
        """Returns a copy of the batch whose tensors are on `device`. The host does not wait for a GPU."""
        moved: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        for name, value in moved.items():
            if isinstance(value, torch.Tensor):
                moved[name] = _moved(value, torch.device(device))
        token_fields = {n: _moved(tensor, torch.device(device)) for n, tensor in self.token_fields.items()}
        return PackedBatch(**moved | {"token_fields": TokenFields(token_fields)})


def _moved(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)  # unpinned memory would block the host
    return tensor.to(device)


def _end_to_end(sequences: Sequence[TrainingSequence], name: str, field: TokenField) -> torch.Tensor:
    arrays = [sequence.token_fields[name] for sequence in sequences]
    return torch.from_numpy(np.concatenate([np.empty(0, field.array_dtype), *arrays]))


@dataclass(frozen=True)
class TokenScores:
    """The scores of each token of a `PackedBatch`. With `grad=True` all are differentiable."""

    logprobs: torch.Tensor  # [T] float32: log p(token | before it in its sequence); 0 at its first token
    entropy: torch.Tensor | None = None  # [T] float32 nats, of the distribution the token was drawn from
    values: torch.Tensor | None = None  # [T] float32, value of the state before the token; needs a value head


@dataclass(frozen=True)
class StepReport:
    """The report of one optimizer step. All but `measures` is the same on every rank."""

    grad_norm: float  # global norm over all ranks, before clipping
    learning_rate: float  # the learning rate that this step used
    skipped: bool  # whether a gradient that was not finite was discarded, without an update
    measures: Mapping[str, float] = field(default_factory=dict)  # further metrics, from rank 0 alone


@dataclass(frozen=True)
class LowRank:
    """The trained float32 factors of a `[out, in]` weight, which is `frozen + scale * b @ a`."""

    a: torch.Tensor  # [r, in]
    b: torch.Tensor  # [out, r]
    scale: float

    def merged(self, frozen: torch.Tensor) -> torch.Tensor:
        """Returns the weight as a new `[out, in]` tensor."""
        return torch.addmm(frozen, self.b, self.a, alpha=self.scale)


class SaveHandle(abc.ABC):
    """A handle on a checkpoint that may still be being written."""

    @abc.abstractmethod
    def wait(self) -> None:
        """Waits until the checkpoint is complete on disk. Raises an error if it could not be written.

        If a disk or a quota is full, it raises an OSError with ENOSPC or EDQUOT. Training then continues
        without this checkpoint.

        It is not a collective: rank 0 may wait alone, and in another thread.
        """


class TrainerWorker(abc.ABC):
    """One rank of a training backend.

    `init_worker` creates torch.distributed's default process group, so that the pipeline can open a control
    group of its own.
    """

    needs_model: bool = True  # whether `model_path` must be a Hugging Face model directory
    missing: str | None = None  # why it cannot run on this machine and what to install; None if it can
    trains_low_rank: bool = False  # whether it trains only the factors that `gather_low_rank` yields
    period: int | None = None  # every so many steps, one also changes weights in another way; None: none does
    longest_wait_s: float = 0.0  # the longest time that a step waits for more than its own ranks
    device: torch.device

    def memory(self, shape: ModelShape, world_size: int, tokens: int) -> dict[str, int] | None:
        """Estimates a rank's device memory in bytes, by purpose, for a micro-batch of `tokens`.

        It uses only the constructor's options, so it can be called before anything is loaded. It returns None
        if the backend makes no estimate.
        """
        return None

    def unfit(self, model_path: str) -> str | None:
        """Returns why it cannot train the model in a directory, as far as `config.json` tells, or None.

        It uses only the constructor's options, so it can be called before anything is loaded.
        """
        return None

    @abc.abstractmethod
    def init_worker(self, spec: WorkerSpec) -> None:
        """Loads and shards the weights and the optimizer state, and joins the trainer's process group.

        Weights are float32, with the values of the checkpoint's files whatever dtype its config names. Raises
        ValueError, on every rank, for a model whose scores would not be those of its own logits. If a rank
        raises, no other rank is left waiting.
        """

    @abc.abstractmethod
    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        """Returns the `[T]` log-probability of every token, in nats, at its sequence's temperature.

        Entropies are returned if requested. With `grad=True` a gradient flows through every score, otherwise
        through none. Packed sequences do not attend to each other, and dropout is off. The full `[T, vocab]`
        logits never exist at once, with a gradient or without. The batch is not modified. An empty batch
        takes part in the ranks' collectives and returns empty scores that `backward` accepts.

        Several forwards may precede the first backward, and a forward with `grad=False` may come at any time.
        None changes a gradient. A backend that needs each backward before the next forward raises
        NotImplementedError on every rank. Every forward uses the weights after the last step.
        """

    @abc.abstractmethod
    def backward(self, loss: torch.Tensor) -> None:
        """Accumulates the gradient of this rank's share of the loss, a scalar.

        Over micro-batches and ranks the gradient is the plain sum: it is not divided by accumulation steps or
        world size. A loss may use scores where the mask is off or advantages are 0. `forward`,
        `gather_weights`, `export` and `save` do not change the gradient before `step`.
        """

    @abc.abstractmethod
    def step(self) -> StepReport:
        """Clips the gradient, steps the optimizer and the learning rate, and zeroes the gradient.

        If the gradient is not finite, only the update is skipped: the step still ends, and counts for the
        learning rate. Weight decay applies to every parameter, including biases and norms. If all batches
        were empty, the gradient is zero, but the moments still change the weights.
        """

    @abc.abstractmethod
    def weight_manifest(self, dtype: str) -> WeightManifest:
        """Returns names, shapes and ties of the weights, in the order of `gather_weights`."""

    @abc.abstractmethod
    def gather_weights(self) -> Iterator[tuple[str, torch.Tensor | None]]:
        """Yields names with full, contiguous tensors on rank 0, and with None on the other ranks.

        At most one layer is gathered at a time. All ranks must iterate in lockstep, to the end. A tensor
        stays valid until the iteration ends.
        """

    def buffers(self) -> Mapping[str, torch.Tensor]:
        """Returns the model's persistent buffers on the CPU, by name, with their current values.

        They are the same on every rank. No server receives them, but stored versions contain them. By default
        there are none.
        """
        return {}

    def gather_low_rank(self) -> Iterator[tuple[str, LowRank | None]]:
        """Yields names of weights with their low-rank factors on rank 0, and with None on the other ranks.

        By default there are none. If there are, they alone are trained: `gather_weights` yields these weights
        `merged` from what was loaded, and all others as they were loaded. Gradients, their norm and AdamW are
        those of the factors. The names and scales stay the same. All ranks iterate in lockstep, to the end.
        """
        return iter(())

    def shards(self) -> list[torch.Tensor] | None:
        """Returns this rank's own elements of what is trained, or None if the backend has no such access.

        The tensors are float32 and contiguous, and have no gradient. Over all ranks they hold each trained
        element once: a value head too, and factors in place of the weights that they adapt. Tensors may be
        empty, or padded with zeros that have no effect. Order and sizes follow from the model, the
        constructor's options, and the numbers of the rank and of all ranks.

        Between two steps, a caller may write to them and then call `adopt`. The next `step` or `load` may
        replace them.
        """
        return None

    def adopt(self) -> None:
        """Makes the worker compute and train with what was written to `shards`. It is a collective.

        Moments, the number of steps and the learning rate stay as they are.
        """
        raise NotImplementedError(f"{type(self).__name__} has no shards to write to")

    @abc.abstractmethod
    def save(self, directory: Path) -> SaveHandle:
        """Saves everything that the next step depends on, in its current state.

        Write errors are raised by the handle's `wait`, so that all ranks continue alike. Steps and other
        saves may follow before `wait` returns, and `close` may be called without waiting. If several saves go
        to the same directory, the last one remains.
        """

    @abc.abstractmethod
    def load(self, directory: Path) -> None:
        """Restores what `save` wrote, whatever steps the worker has made since it started.

        Raises an error, on every rank, if the checkpoint does not fit this model.
        """

    @abc.abstractmethod
    def export(self, directory: Path) -> None:
        """Writes a Hugging Face checkpoint of the current weights, rounded to a dtype of its own choice.

        It contains everything needed to serve it: config, generation config, tokenizer and its chat template.
        It replaces an earlier export of this worker in the directory.
        """

    @abc.abstractmethod
    def reset_optimizer(self) -> None:
        """Discards the optimizer's moments, as if no step had been made."""

    @abc.abstractmethod
    def close(self) -> None:
        """Finishes checkpoints that are still being written, then frees what the worker holds."""
