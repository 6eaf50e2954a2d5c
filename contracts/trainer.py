"""The trainer contract: the interface of a training backend, with one `TrainerWorker` per rank.

The pipeline calls every method on every rank, in the same order. The loss is not part of it: `loss =
objective(scores, batch)` is plain PyTorch on `[T]` tensors, so an objective runs on every backend.
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
    """The arguments of `TrainerWorker.init_worker`. The worker with `rank` 0 is the coordinator."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model_path: str
    optimizer: OptimizerSpec
    rank: int = 0
    world_size: int = 1
    master_address: str = "127.0.0.1"
    master_port: int = Field(29500, description="rank 0 listens here, with SO_REUSEADDR: it is reserved")
    device: Literal["cpu", "cuda"] = "cpu"
    seed: int = 0
    timeout_s: float = Field(1800, gt=0, description="timeout of one rank's wait for another")
    alone: bool = Field(False, description="if true, the worker must not contact other runs, e.g. islands")


@dataclass(frozen=True)
class Footprint:
    """What a trainer takes of host memory and disk, in bytes, besides its programs and their libraries."""

    rank: int  # host memory that each rank always holds, such as an offloaded optimizer
    saving: int  # host memory that each rank adds while it copies a checkpoint
    whole: int  # host memory that rank 0 adds while it loads or exports the weights
    checkpoint: int  # disk
    export: int  # disk


class TokenFields(dict[str, torch.Tensor]):
    """The tensors of the declared token fields, by name."""

    def __missing__(self, name: str) -> torch.Tensor:
        declared = ", ".join(self) or "none"
        raise KeyError(f"token_fields.{name} is not declared: add its dtype and fill (declared: {declared})")


_ARRAYS = {  # array of `TrainingSequence` -> its dtype in a batch
    "token_ids": torch.int64,
    "loss_mask": torch.bool,
    "behaviour_logprobs": torch.float32,
    "versions": torch.int64,
    "advantages": torch.float32,
}


@dataclass(frozen=True)
class PackedBatch:
    """One rank's micro-batch: S concatenated sequences with T tokens in total. T may be 0."""

    token_ids: torch.Tensor  # [T] int64
    position_ids: torch.Tensor  # [T] int64, from 0 in each sequence
    sequence_ids: torch.Tensor  # [T] int64, index of the sequence, 0 to S - 1
    rollout_ids: torch.Tensor  # [T] int64, index of the rollout, 0 to R - 1
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
    start_values: torch.Tensor | None = None  # [T] float32, value head's output before the step
    step: int = 0  # weight version before the step: a token's lag is step - versions
    token_fields: TokenFields = field(default_factory=TokenFields)  # [T] each, in the declared dtype

    @classmethod
    def pack(
        cls,
        sequences: Sequence[TrainingSequence],
        step: int = 0,
        token_fields: Mapping[str, TokenField] = {},
    ) -> "PackedBatch":
        """Concatenates the sequences, in order, into a batch of CPU tensors.

        `reference_logprobs` is None unless every sequence has them. `token_fields` are the declared fields;
        an empty batch has them too. Raises TokenFieldError if a sequence has other fields.
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
        """Returns a copy of the batch with its tensors on `device`. Copies to a GPU are asynchronous."""
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

    logprobs: torch.Tensor  # [T] float32 nats, log p(token | tokens before it); 0 at a sequence's first token
    entropy: torch.Tensor | None = None  # [T] float32 nats, of the distribution over the token
    values: torch.Tensor | None = None  # [T] float32, value of the state before the token; needs a value head


@dataclass(frozen=True)
class StepReport:
    """The report of one optimizer step. All fields except `measures` are equal on every rank."""

    grad_norm: float  # global norm over all ranks, before clipping
    learning_rate: float  # learning rate of this step
    skipped: bool  # True if the gradient was not finite and there was no update
    measures: Mapping[str, float] = field(default_factory=dict)  # further metrics; rank 0's are recorded


@dataclass(frozen=True)
class LowRank:
    """The trained float32 LoRA factors of a `[out, in]` weight, which is `frozen + scale * b @ a`."""

    a: torch.Tensor  # [r, in]
    b: torch.Tensor  # [out, r]
    scale: float

    def merged(self, frozen: torch.Tensor) -> torch.Tensor:
        """Returns the weight as a new `[out, in]` tensor."""
        return torch.addmm(frozen, self.b, self.a, alpha=self.scale)


class SaveHandle(abc.ABC):
    """A handle to a checkpoint that a worker writes in the background."""

    @abc.abstractmethod
    def wait(self) -> None:
        """Waits until the checkpoint is complete on disk. Raises an error if writing failed.

        If a disk or a quota is full, it raises an OSError with ENOSPC or EDQUOT, and training continues
        without this checkpoint. `wait` is not a collective: rank 0 may call it alone, in any thread.
        """


class TrainerWorker(abc.ABC):
    """One rank of a training backend.

    `init_worker` creates torch.distributed's default process group, so that the pipeline can create a control
    group beside it.

    period: one in so many updates also changes the weights outside of AdamW, e.g. by an outer optimizer. None
        if no update does.
    """

    needs_model: bool = True  # True if `model_path` must be a Hugging Face model directory
    missing: str | None = None  # message: missing dependency, and what to install; None if nothing is missing
    trains_low_rank: bool = False  # True if it trains only the factors that `gather_low_rank` yields
    period: int | None = None
    longest_wait_s: float = 0.0  # upper bound of a step's wait for processes other than its own ranks
    offloads: bool = False  # True if it has `offload` and `onload`
    device: torch.device

    def memory(self, shape: ModelShape, world_size: int, tokens: int) -> dict[str, int] | None:
        """Estimates a rank's device memory in bytes, by purpose, for a micro-batch of `tokens` tokens.

        Uses only the constructor's options, and is called before `init_worker`. Returns None if the backend
        has no estimate.
        """
        return None

    def footprint(self, shape: ModelShape, world_size: int) -> Footprint | None:
        """Estimates what the trainer takes of host memory and disk.

        Uses only the constructor's options, and is called before `init_worker`. Returns None if the backend
        has no estimate.
        """
        return None

    def unfit(self, model_path: str) -> str | None:
        """Returns a message if `config.json` shows that the backend cannot train the model, else None.

        Uses only the constructor's options, and is called before `init_worker`.
        """
        return None

    @abc.abstractmethod
    def init_worker(self, spec: WorkerSpec) -> None:
        """Loads and shards the weights and the optimizer state, and joins the trainer's process group.

        Weights are float32, with the exact values of the checkpoint's files, whatever dtype its config names.
        Raises ValueError, on every rank, if the backend's scores would differ from the model's own logits. If
        a rank raises, the other ranks do not block.
        """

    @abc.abstractmethod
    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        """Returns the `[T]` log-probability of every token, in nats, at its sequence's temperature.

        Entropies are returned if `entropy` is set. With `grad=True` all scores are differentiable, otherwise
        none. Packed sequences do not attend to each other, and dropout is off. The full `[T, vocab]` logits
        are never materialised. The batch is not modified. An empty batch takes part in the ranks' collectives
        and returns empty scores that `backward` accepts.

        Several forwards may precede the first backward, and a forward with `grad=False` may come at any time.
        A forward does not change gradients. A backend that needs each backward before the next forward raises
        NotImplementedError on every rank. Every forward uses the weights after the last step.
        """

    @abc.abstractmethod
    def backward(self, loss: torch.Tensor) -> None:
        """Accumulates the gradient of this rank's share of the loss, a scalar.

        Gradients are summed over micro-batches and ranks, not averaged. A loss may use scores at positions
        where the mask is off or advantages are 0. `forward`, `gather_weights`, `export` and `save` do not
        change the accumulated gradient.
        """

    @abc.abstractmethod
    def step(self) -> StepReport:
        """Clips the gradient, steps the optimizer and the learning rate schedule, and zeroes the gradient.

        If the gradient is not finite, the update is skipped, but the learning rate schedule advances. Weight
        decay applies to every parameter, including biases and norms. If all batches were empty, the gradient
        is zero, but the moments still change the weights.
        """

    @abc.abstractmethod
    def weight_manifest(self, dtype: str) -> WeightManifest:
        """Returns names, shapes and ties of the weights, in the order of `gather_weights`."""

    @abc.abstractmethod
    def gather_weights(self) -> Iterator[tuple[str, torch.Tensor | None]]:
        """Yields (name, full contiguous tensor) on rank 0, and (name, None) on the other ranks.

        At most one layer is gathered at a time. All ranks must iterate in lockstep, to the end. A tensor
        is not overwritten before the end; its memory is free when the caller drops it.
        """

    def buffers(self) -> Mapping[str, torch.Tensor]:
        """Returns the model's persistent buffers on the CPU, by name, with their current values.

        They are equal on every rank. Servers do not receive them, but stored versions contain them. By
        default there are none.
        """
        return {}

    def gather_low_rank(self) -> Iterator[tuple[str, LowRank | None]]:
        """Yields (weight's name, low-rank factors) on rank 0, and (name, None) on the other ranks.

        By default there are none. If there are, only the factors are trained: gradients, their norm and AdamW
        are those of the factors. `gather_weights` then yields these weights `merged` with the loaded ones,
        and all others as loaded. Names and scales do not change. All ranks iterate in lockstep, to the end.
        """
        return iter(())

    def shards(self) -> list[torch.Tensor] | None:
        """Returns this rank's shards of the trained parameters, or None if the backend cannot expose them.

        The tensors are float32 and contiguous, and have no gradient. Over all ranks they contain each trained
        element once, including a value head, and factors in place of the weights that they adapt. Tensors may
        be empty, or padded with zeros that have no effect. Order and sizes depend only on the model, the
        constructor's options, the rank and the world size.

        Between two steps, a caller may write to them and then call `adopt`. The next `step` or `load` may
        replace them.
        """
        return None

    def adopt(self) -> None:
        """Makes the worker use the values that were written to `shards`. It is a collective.

        Moments, the number of steps and the learning rate do not change.
        """
        raise NotImplementedError(f"{type(self).__name__} has no shards to write to")

    @abc.abstractmethod
    def save(self, directory: Path) -> SaveHandle:
        """Saves the current state of everything that the next step depends on.

        The handle's `wait` raises write errors, so that no rank diverges from the others here. Steps and
        other saves may follow before `wait` returns, and `close` may be called without waiting. If several
        saves go to one directory, it contains the last one.
        """

    @abc.abstractmethod
    def load(self, directory: Path) -> None:
        """Restores the state that `save` wrote. The worker may have made steps before.

        Raises an error, on every rank, if the checkpoint does not match this model.
        """

    @abc.abstractmethod
    def export(self, directory: Path) -> None:
        """Writes a Hugging Face checkpoint of the current weights, in a dtype that the backend chooses.

        The checkpoint can be served: it has config, generation config, tokenizer and its chat template. It
        replaces an earlier export of this worker in the directory.
        """

    @abc.abstractmethod
    def reset_optimizer(self) -> None:
        """Discards the optimizer's moments."""

    def offload(self) -> None:
        """Moves weights and optimizer state off this rank's device, until `onload`.

        At most a twentieth of the bytes stay. On a CPU they leave host memory, for a file for example. Called
        on every rank, when no gradient is accumulated; a save may be unfinished. Only `onload`, `close`, and
        `wait` of a save may follow. If it raises, nothing has moved on this rank, and `onload` does nothing.
        """
        raise NotImplementedError(f"{type(self).__name__} does not offload")

    def onload(self) -> None:
        """Moves back what `offload` moved. The next step is that of a worker that never offloaded, exactly.

        If the device lacks memory, it raises, nothing is on it, and it may be called again.
        """
        raise NotImplementedError(f"{type(self).__name__} does not offload")

    @abc.abstractmethod
    def close(self) -> None:
        """Finishes checkpoints that are still being written, then frees the worker's resources."""
