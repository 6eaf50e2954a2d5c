"""Base class of the backends that train a Hugging Face causal language model by AdamW: `fsdp`, `deepspeed`.

A backend implements sharding, scoring, stepping and gathering. Options, empty batches, manifest, checkpoint
format and export are implemented here, so each backend can load the other's checkpoints and exports.
"""

import abc
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import torch
import torch.distributed as dist
from transformers import PreTrainedModel

from contracts.causal_model import causal_config
from contracts.inference import Parameter
from contracts.limits import MAX_INTEGER
from contracts.model_shape import ModelShape
from contracts.support.messages import one_line
from contracts.trainer import (
    Footprint,
    LowRank,
    PackedBatch,
    SaveHandle,
    TokenScores,
    TrainerWorker,
    WorkerSpec,
)
from contracts.weights import WeightManifest
from trainer_adapters.activation_checkpointing import Checkpointing
from trainer_adapters.buffers import loaded_buffers, persistent_buffers, share_buffers
from trainer_adapters.checkpoint import ShardedCheckpoints, complete_or_absent, restore_rng, rng_state
from trainer_adapters.checkpoint_io import copy_tokenizer, load_model, save_model
from trainer_adapters.flash_attention import prefer_flash_attention_3
from trainer_adapters.lora import LoRA, adapted_layers, base_parameters, factors_of
from trainer_adapters.lora_files import KEY, description, difference, fingerprint, save_adapter
from trainer_adapters.memory import FLOAT32, activations, scoring
from trainer_adapters.output_head import default_chunk
from trainer_adapters.process_group import join_on_device
from trainer_adapters.start_check import Scores, check_scores
from trainer_adapters.token_scores import TokenScorer, unfit_config, unfit_model

if TYPE_CHECKING:
    from trainer_adapters.off_device import OffDevice

ComputeDtype = Literal["float32", "bfloat16"]
MOMENTS = ("exp_avg", "exp_avg_sq")  # the moments of AdamW
GRADIENT = "a gradient is accumulated, which offload does not keep: call step first"


class HuggingFaceTrainer(TrainerWorker):
    """A backend for Hugging Face models. Constructor options of every such backend:

    compute_dtype: dtype of the forward and backward pass. Master weights, gradient reduction and
        optimizer are always float32.
    fp32_head: compute logits in float32. With bfloat16, the head's weights are still rounded, as on servers.
    activation_checkpointing: save only the decoder layers' inputs and recompute the rest in backward. With
        "selective", also save the results of matrix products and attention.
    logits_chunk: number of tokens whose logits exist at the same time: twice `logits_chunk * vocab` floats.
        None: 64 to 256 MiB, depending on the size of the head.
    value_head: also learn the value of each state, by a linear layer over the hidden states. It starts at 0,
        is trained and saved like any parameter, and is never sent or exported.
    lora: `rank`, `alpha` and, if not all linear layers, `targets` of low-rank adapters (`lora.LoRA`). Only
        these and the value head are trained. The weights that are sent and exported are merged.
    """

    def __init__(
        self,
        *,
        compute_dtype: ComputeDtype = "float32",
        fp32_head: bool = True,
        activation_checkpointing: Checkpointing = False,
        logits_chunk: int | None = None,
        value_head: bool = False,
        lora: Mapping[str, object] | None = None,
    ):
        if compute_dtype not in get_args(ComputeDtype):
            raise ValueError(f"compute_dtype must be float32 or bfloat16, not {compute_dtype!r}")
        for name, flag in {"fp32_head": fp32_head, "value_head": value_head}.items():
            if not isinstance(flag, bool):
                raise ValueError(f"{name} must be true or false, not {flag!r}")
        if activation_checkpointing != "selective" and not isinstance(activation_checkpointing, bool):
            raise ValueError(
                f"activation_checkpointing must be true, false or selective, not {activation_checkpointing!r}"
            )
        if logits_chunk is not None and (type(logits_chunk) is not int or not 0 < logits_chunk < MAX_INTEGER):
            raise ValueError(
                f"logits_chunk must be a positive number of tokens or null, not {logits_chunk!r}"
            )
        self._compute_dtype: torch.dtype = getattr(torch, compute_dtype)
        self._fp32_head = fp32_head
        self._activation_checkpointing = activation_checkpointing
        self._logits_chunk = logits_chunk
        self._value_head = value_head
        self._lora = None if lora is None else LoRA.of(lora)
        self.trains_low_rank = self._lora is not None

    offloads = True

    @property
    def missing(self) -> str | None:
        if self._lora is None or find_spec("peft"):
            return None
        return "peft is not installed, which trainer.lora needs: pip install -e '.[lora]'"

    # --- methods that a backend implements ----------------------------------------------------

    @abc.abstractmethod
    def _state_memory(self, shape: ModelShape, world_size: int) -> dict[str, int]:
        """Returns bytes on a rank's device by purpose: weights, gradients, optimizer, gathered."""

    @abc.abstractmethod
    def _shard(self) -> None:
        """Shards `self._scorer`, whose weights rank 0 has, over the ranks, and creates the optimizer."""

    @abc.abstractmethod
    def _score(self, batch: PackedBatch, entropy: bool, own: bool = False) -> Scores:
        """Returns `TokenScorer.forward` of a batch that is not empty, on this rank's device."""

    @abc.abstractmethod
    def _state(self) -> dict[str, torch.Tensor]:
        """Returns this rank's part of each trained `model.<name>` and `optimizer.<moment>.<name>`."""

    @abc.abstractmethod
    def _restore(self, directory: Path) -> None:
        """Restores a saved `_state`. The number of ranks may differ."""

    @abc.abstractmethod
    def _held(self) -> Iterator[torch.Tensor]:
        """Returns an iterator over the tensors of weights, gradients and optimizer, or over views of them."""

    @abc.abstractmethod
    def _full(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        """Returns the full, contiguous float32 parameter. It is a collective."""

    # --- parameters and optimizer -------------------------------------------------------------

    def _served(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Returns an iterator over the base model's parameters by name, in its order, tied ones once."""
        self._check_onloaded()
        return base_parameters(self._model)

    def _trained(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Returns an iterator over the trained parameters of the model, then of the value head, by name."""
        self._check_onloaded()
        every = self._scorer.named_parameters()
        return ((name.removeprefix("model."), p) for name, p in every if p.requires_grad)

    def _shape(self, parameter: torch.nn.Parameter) -> torch.Size:
        return parameter.shape

    def _adamw(self, parameters: list[torch.nn.Parameter]) -> torch.optim.AdamW:
        spec = self._spec.optimizer
        return torch.optim.AdamW(
            parameters,
            lr=spec.lr,
            betas=spec.betas,
            eps=spec.eps,
            weight_decay=spec.weight_decay,
            fused=True,
        )

    @staticmethod
    def _fresh_moments(parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        moments = {name: torch.zeros_like(parameter) for name in MOMENTS}
        return {"step": torch.zeros((), device=parameter.device), **moments}

    # --- estimates before loading -------------------------------------------------------------

    def memory(self, shape: ModelShape, world_size: int, tokens: int) -> dict[str, int]:
        value = self._compute_dtype.itemsize
        chunk = self._logits_chunk or default_chunk(shape.vocab_size, shape.hidden_size)
        return {
            **self._state_memory(shape, world_size),
            "activations": activations(shape, tokens, value, self._activation_checkpointing),
            "logits": scoring(shape, chunk, tokens, value, self._fp32_head, frozen=bool(self._lora)),
        }

    def footprint(self, shape: ModelShape, world_size: int) -> Footprint:
        """Weights are loaded and exported in float32. A checkpoint has the trained ones and their moments.

        Saving copies a checkpoint once into host memory, each rank its part.
        """
        checkpoint = (1 + len(MOMENTS)) * FLOAT32 * self._trained_parameters(shape)
        whole = FLOAT32 * shape.parameters
        return Footprint(
            rank=0, saving=checkpoint // world_size, whole=whole, checkpoint=checkpoint, export=whole
        )

    def _parameters(self, shape: ModelShape) -> int:
        return shape.parameters + (self._lora.parameters(shape) if self._lora else 0)

    def _trained_parameters(self, shape: ModelShape) -> int:
        return self._lora.parameters(shape) if self._lora else shape.parameters

    def unfit(self, model_path: str) -> str | None:
        config = causal_config(model_path, local_files_only=True)
        why = unfit_config(config) or unfit_model(config) or (self._lora and self._lora.unfit(config))
        return why and f"{config.model_type} {why}"

    # --- start and end ------------------------------------------------------------------------

    def init_worker(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self.device = join_on_device(spec)
        prefer_flash_attention_3(self.device)
        torch.manual_seed(spec.seed + spec.rank)
        self._model = self._load()
        self._scorer = TokenScorer(
            self._model,
            fp32_head=self._fp32_head,
            logits_chunk=self._logits_chunk,
            value_head=self._value_head,
        )
        self._adapt()
        self._closed_steps = torch.zeros((), dtype=torch.int64)
        self._off_device: OffDevice | None = None  # None until the first `offload`
        self._checkpoints = ShardedCheckpoints(spec.timeout_s)
        buffers = loaded_buffers(self._model)
        self._shard()
        share_buffers(self._model, buffers, self.device)
        self._check_scores()

    def _load(self) -> PreTrainedModel:
        """Returns this rank's model. If loading fails on one rank, every rank raises an error."""
        failure = None
        try:
            model = load_model(self._spec.model_path, self._spec.rank)
        except Exception as error:
            failure = error
        messages: list[str | None] = [None] * self._spec.world_size
        dist.all_gather_object(messages, failure and one_line(failure))
        if failure:
            raise failure
        if why := next(filter(None, messages), None):
            raise ValueError(why)
        return model

    def _adapt(self) -> None:
        """Adds the adapters, if there are any, and the description of them that checkpoints contain."""
        self._adapted: dict[str, torch.nn.Module] = {}
        self._description = None
        if self._lora is None:
            return
        base = fingerprint(self._model, self._spec.rank, self.device)
        self._lora.inject(self._model)
        self._adapted = adapted_layers(self._model)
        self._description = description(self._lora, self._adapted, base)

    def _check_scores(self) -> None:
        """Raises ValueError on all ranks if packed scores differ from the model's logits or between ranks."""

        def largest(found: float) -> float:
            ranks = torch.tensor(found, device=self.device)
            dist.all_reduce(ranks, dist.ReduceOp.MAX)
            return ranks.item()

        def of_rank_0(scores: torch.Tensor) -> torch.Tensor:
            first = scores.clone()
            dist.broadcast(first, src=0)
            return first

        def score(batch: PackedBatch, own: bool) -> Scores:
            return self._score(batch, entropy=True, own=own)

        check_scores(self._model, score, self._compute_dtype, self.device, largest, of_rank_0)

    def close(self) -> None:
        self._checkpoints.close()
        dist.destroy_process_group()

    # --- scoring ------------------------------------------------------------------------------

    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        self._check_onloaded()
        tokens = batch.num_tokens
        batch = (batch if tokens else _placeholder_batch(batch)).to(self.device)
        with torch.set_grad_enabled(grad):
            scores = [None if score is None else score[:tokens] for score in self._score(batch, entropy)]
        return TokenScores(*scores)

    # --- weights ------------------------------------------------------------------------------

    def weight_manifest(self, dtype: str) -> WeightManifest:
        names = {parameter: name for name, parameter in self._served()}
        every = base_parameters(self._model, remove_duplicate=False)
        return WeightManifest(
            parameters=tuple(
                Parameter(name=name, dtype=dtype, shape=tuple(self._shape(parameter)))
                for parameter, name in names.items()
            ),
            tied={name: names[parameter] for name, parameter in every if name != names[parameter]},
        )

    @torch.no_grad()
    def gather_weights(self) -> Iterator[tuple[str, torch.Tensor | None]]:
        coordinator = self._spec.rank == 0
        for name, parameter in self._served():
            tensor = self._full(parameter)
            if name in self._adapted:
                factors = self._factors(name)
                tensor = factors.merged(tensor) if coordinator else tensor
            yield name, tensor if coordinator else None
            del tensor  # freed before the next one is gathered

    @torch.no_grad()
    def gather_low_rank(self) -> Iterator[tuple[str, LowRank | None]]:
        self._served()  # called for its side effect: FSDP reshards
        for name in self._adapted:
            factors = self._factors(name)
            yield name, factors if self._spec.rank == 0 else None

    def buffers(self) -> dict[str, torch.Tensor]:
        return {name: buffer.cpu() for name, buffer in persistent_buffers(self._model).items()}

    def _factors(self, name: str) -> LowRank:
        """Returns the full factors of an adapted weight. It is a collective."""
        a, b = map(self._full, factors_of(self._adapted[name]))
        return LowRank(a, b, self._lora.scale)

    def export(self, directory: Path) -> None:
        """Writes the float32 master weights, with adapters merged. Rank 0 needs host memory for all of them.

        The subdirectory `adapter` has the adapters alone.
        """
        with complete_or_absent(directory) as partial:
            weights = {name: None if t is None else t.cpu() for name, t in self.gather_weights()}
            factors = dict(self.gather_low_rank())
            if self._spec.rank == 0:
                save_model(self._model, weights | self.buffers(), self._spec.model_path, partial)
                copy_tokenizer(self._spec.model_path, partial)
                if factors:
                    save_adapter(self._model, factors, self._spec.model_path, partial / "adapter")

    # --- memory in turns ----------------------------------------------------------------------

    def _check_onloaded(self) -> None:
        """Raises RuntimeError between `offload` and `onload`."""
        if self._off_device and self._off_device.is_empty:
            raise RuntimeError("what this rank holds is off its device: call onload first")

    @torch.no_grad()
    def offload(self) -> None:
        from trainer_adapters.off_device import OffDevice  # few runs need it

        self._off_device = self._off_device or OffDevice(self.device)
        self._off_device.take(self._held())

    @torch.no_grad()
    def onload(self) -> None:
        if self._off_device:
            self._off_device.give_back()

    # --- checkpoints --------------------------------------------------------------------------

    def save(self, directory: Path) -> SaveHandle:
        return self._checkpoints.save(self._state() | self._own_state(), directory)

    def load(self, directory: Path) -> None:
        if different := difference(self._description, self._checkpoints.stored(KEY, directory)):
            raise ValueError(f"{directory} {different}")
        self._restore(directory)
        own = self._own_state()
        self._checkpoints.load(own, directory)
        self._closed_steps = own["closed_steps"]
        restore_rng(own, self._spec.rank, self.device)

    def _own_state(self) -> dict[str, torch.Tensor]:
        described = {} if self._description is None else {KEY: self._description}
        buffers = {f"buffer.{name}": tensor for name, tensor in persistent_buffers(self._model).items()}
        rng = rng_state(self._spec.rank, self.device)
        return {"closed_steps": self._closed_steps, **described, **buffers, **rng}


def _placeholder_batch(empty: PackedBatch) -> PackedBatch:
    """Returns a batch of two tokens for a rank with an empty batch. Their scores are discarded.

    Their zero gradient reaches every parameter, so that all ranks run the same collectives.
    """
    return replace(
        empty,
        token_ids=torch.zeros(2, dtype=torch.int64),
        position_ids=torch.arange(2),
        cu_seqlens=torch.tensor([0, 2], dtype=torch.int32),
        temperature=torch.ones(2),
    )
