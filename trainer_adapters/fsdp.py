"""FSDPTrainer: the trainer contract on PyTorch FSDP2, from one process to many, CPU (gloo) and CUDA (NCCL).

Every rank holds a shard of each parameter, in float32, with its gradient and AdamW state. The decoder
layers are gathered one at a time; embedding, final norm and head, which belong to the root, stay gathered
from a forward to its backward, because the head is used outside any module of its own.
"""

import math
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal, get_args

import torch
import torch.distributed as dist
from torch.distributed._composable import checkpoint as checkpoint_activations
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from contracts.inference import Parameter
from contracts.trainer import PackedBatch, SaveHandle, StepReport, TokenScores, TrainerWorker, WorkerSpec
from contracts.weights import WeightManifest
from trainer_adapters import checkpoint
from trainer_adapters.hugging_face import copy_tokenizer, deal_weights, load_model
from trainer_adapters.learning_rate import learning_rate
from trainer_adapters.process_group import join_process_group
from trainer_adapters.token_scores import TokenScorer

ComputeDtype = Literal["float32", "bfloat16"]


class FSDPTrainer(TrainerWorker):
    """Constructor options, all of the backend itself:

    compute_dtype: dtype of the forward and backward pass. Master weights, gradient reduction and
        optimizer are float32 either way.
    fp32_head: compute logits in float32 from (under bfloat16) weights rounded as the servers hold them.
    activation_checkpointing: keep only the decoder layers' inputs and compute the rest again in backward.
    logits_chunk: tokens whose logits exist at the same time; the head's peak memory is a few times
        `logits_chunk * vocab` floats.
    """

    def __init__(
        self,
        *,
        compute_dtype: ComputeDtype = "float32",
        fp32_head: bool = True,
        activation_checkpointing: bool = False,
        logits_chunk: int = 1024,
    ):
        if compute_dtype not in get_args(ComputeDtype):
            raise ValueError(f"compute_dtype must be float32 or bfloat16, not {compute_dtype!r}")
        for name, flag in (("fp32_head", fp32_head), ("activation_checkpointing", activation_checkpointing)):
            if not isinstance(flag, bool):
                raise ValueError(f"{name} must be true or false, not {flag!r}")
        if not isinstance(logits_chunk, int) or logits_chunk < 1:
            raise ValueError(f"logits_chunk must be a positive number of tokens, not {logits_chunk!r}")
        self._compute_dtype: torch.dtype = getattr(torch, compute_dtype)
        self._fp32_head = fp32_head
        self._activation_checkpointing = activation_checkpointing
        self._logits_chunk = logits_chunk

    # --- birth and end ------------------------------------------------------------------------

    def init_worker(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self.device = _join_process_group(spec)
        torch.manual_seed(spec.seed + spec.rank)
        self._model = load_model(spec.model_path, spec.rank)
        self._scorer = TokenScorer(self._model, fp32_head=self._fp32_head, logits_chunk=self._logits_chunk)
        whole = {name: p.detach() for name, p in self._model.named_parameters()} if spec.rank == 0 else {}
        self._shard()
        if spec.world_size > 1:
            deal_weights(self._model, whole)
        self._closed_steps = torch.zeros((), dtype=torch.int64)
        self.reset_optimizer()

    def _shard(self) -> None:
        mesh = init_device_mesh(self.device.type, (self._spec.world_size,))
        precision = MixedPrecisionPolicy(
            param_dtype=self._compute_dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
        )
        for layer in self._scorer.layers:
            if self._activation_checkpointing:
                checkpoint_activations(layer)
            fully_shard(layer, mesh=mesh, mp_policy=precision)
        fully_shard(self._scorer, mesh=mesh, mp_policy=precision)
        for module in self._scorer.modules():
            if isinstance(module, FSDPModule):
                # A plain sum over ranks; gloo has no other way to reduce without dividing.
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)

    def close(self) -> None:
        dist.destroy_process_group()

    # --- scoring and learning -----------------------------------------------------------------

    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        tokens = batch.num_tokens
        batch = (batch if tokens else _stand_in(batch)).to(self.device)
        with torch.set_grad_enabled(grad):
            logprobs, entropies = self._scorer(batch, entropy)
        return TokenScores(logprobs[:tokens], None if entropies is None else entropies[:tokens])

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def step(self) -> StepReport:
        gradients = [p.grad.to_local() for _, p in self._shards() if p.grad is not None]
        norm = self._global_norm(gradients)
        rate = learning_rate(self._spec.optimizer, int(self._closed_steps))
        finite = math.isfinite(norm)
        if finite:
            if gradients:
                torch._foreach_mul_(gradients, min(1.0, self._spec.optimizer.max_grad_norm / (norm + 1e-6)))
            for group in self._optimizer.param_groups:
                group["lr"] = rate
            self._optimizer.step()
        self._optimizer.zero_grad()
        self._closed_steps += 1
        return StepReport(grad_norm=norm, learning_rate=rate, skipped=not finite)

    def _global_norm(self, gradients: list[torch.Tensor]) -> float:
        """Every gradient is sharded and none replicated, so squares add up over ranks."""
        square = torch.nn.utils.get_total_norm(gradients).to(self.device, torch.float64).square()
        dist.all_reduce(square)
        return square.sqrt().item()

    def reset_optimizer(self) -> None:
        """Forget the moments. Their tensors exist from the start: memory that will not suffice fails
        here, and a checkpoint has the same keys at every step."""
        spec = self._spec.optimizer
        parameters = [parameter for _, parameter in self._shards()]
        self._optimizer = torch.optim.AdamW(
            parameters,
            lr=spec.lr,
            betas=spec.betas,
            eps=spec.eps,
            weight_decay=spec.weight_decay,
            fused=True,
        )
        for parameter in parameters:
            self._optimizer.state[parameter] = {
                "step": torch.zeros((), device=self.device),
                "exp_avg": torch.zeros_like(parameter),
                "exp_avg_sq": torch.zeros_like(parameter),
            }

    # --- weights ------------------------------------------------------------------------------

    def _shards(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """The sharded parameters by name, a tied one once. After a forward that has had no backward
        the root is still gathered; a step would leave that copy behind, out of date."""
        self._scorer.reshard()
        return self._model.named_parameters()

    def weight_manifest(self, dtype: str) -> WeightManifest:
        names = {parameter: name for name, parameter in self._shards()}
        return WeightManifest(
            parameters=tuple(Parameter(name=n, dtype=dtype, shape=tuple(p.shape)) for p, n in names.items()),
            tied={
                name: names[parameter]
                for name, parameter in self._model.named_parameters(remove_duplicate=False)
                if name != names[parameter]
            },
        )

    @torch.no_grad()
    def gather_weights(self) -> Iterator[tuple[str, torch.Tensor | None]]:
        for name, parameter in self._shards():
            tensor = parameter.full_tensor().contiguous()
            if self._spec.world_size == 1:
                tensor = tensor.clone()  # the whole tensor is the shard: a later step would change it
            yield name, tensor if self._spec.rank == 0 else None

    # --- checkpoints --------------------------------------------------------------------------

    def save(self, directory: Path) -> SaveHandle:
        return checkpoint.save(self._state(), directory)

    def load(self, directory: Path) -> None:
        state = self._state()
        checkpoint.load(state, directory)
        checkpoint.restore_rng(state, self._spec.rank, self.device)

    def _state(self) -> dict[str, torch.Tensor]:
        """All that the next step depends on, as tensors to write from and read into."""
        state = {"closed_steps": self._closed_steps, **checkpoint.rng_state(self._spec.rank, self.device)}
        for name, parameter in self._shards():
            state[f"model.{name}"] = parameter.detach()
            for moment, tensor in self._optimizer.state[parameter].items():
                state[f"optimizer.{moment}.{name}"] = tensor
        return state

    def export(self, directory: Path) -> None:
        """The float32 master weights; rank 0 holds them all in host memory meanwhile."""
        with checkpoint.whole_or_absent(directory) as partial:
            weights = {name: None if t is None else t.cpu() for name, t in self.gather_weights()}
            if self._spec.rank == 0:
                self._model.save_pretrained(partial, state_dict=weights)
                copy_tokenizer(self._spec.model_path, partial)


def _join_process_group(spec: WorkerSpec) -> torch.device:
    """Make the default process group; returns the device of this rank."""
    device = torch.device("cpu")
    if spec.device == "cuda":
        if not torch.cuda.is_available():
            raise ValueError("the trainer's device is cuda, but torch sees no CUDA device here")
        # Modulo, because a launcher may show each process its own GPU only.
        local_rank = int(os.environ.get("LOCAL_RANK", spec.rank))
        device = torch.device("cuda", local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        join_process_group(spec, "nccl", device)
    else:
        join_process_group(spec, "gloo")
    return device


def _stand_in(empty: PackedBatch) -> PackedBatch:
    """Two tokens that no score is kept of, for a rank without work: their zero gradient passes through
    every parameter, so that the ranks' collectives match."""
    return replace(
        empty,
        token_ids=torch.zeros(2, dtype=torch.int64),
        position_ids=torch.arange(2),
        cu_seqlens=torch.tensor([0, 2], dtype=torch.int32),
        temperature=torch.ones(2),
    )
