"""FSDPTrainer: the trainer contract on PyTorch FSDP2, from one process to many, CPU (gloo) and CUDA (NCCL).

Every rank has a shard of each parameter, in float32, with its gradient and AdamW state. The decoder layers
are gathered one at a time. Embedding, final norm and head belong to the root module. They stay gathered from
a forward to its backward, because the head is used outside of its module. A single rank that computes in
float32 does not use FSDP, because it has nothing to gather, cast or reduce.
"""

import math
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from contracts.model_shape import ModelShape
from contracts.trainer import PackedBatch, StepReport
from trainer_adapters.activation_checkpointing import checkpoint_layers
from trainer_adapters.checkpoint_io import scatter_weights
from trainer_adapters.hugging_face_trainer import GRADIENT, HuggingFaceTrainer
from trainer_adapters.learning_rate import learning_rate
from trainer_adapters.memory import FLOAT32
from trainer_adapters.start_check import Scores


class FSDPTrainer(HuggingFaceTrainer):
    """A trainer on FSDP2. Its options, in addition to those of HuggingFaceTrainer:

    compile_layers: compile the decoder layers with torch.compile.
    """

    def __init__(self, *, compile_layers: bool = False, **options: object):
        super().__init__(**options)
        if not isinstance(compile_layers, bool):
            raise ValueError(f"compile_layers must be true or false, not {compile_layers!r}")
        if compile_layers and self._activation_checkpointing == "selective":
            raise ValueError(
                "compile_layers=true cannot be set with activation_checkpointing=selective: "
                "a compiled layer decides what it computes again; set true or false"
            )
        self._compile_layers = compile_layers

    def unfit(self, model_path: str) -> str | None:
        if not self._compile_layers:
            return super().unfit(model_path)
        from trainer_adapters.compiled_layers import unfit_to_compile

        return super().unfit(model_path) or unfit_to_compile(model_path)

    def _state_memory(self, shape: ModelShape, world_size: int) -> dict[str, int]:
        """Returns the bytes of the sharded state.

        "gathered": embedding and head with their gradients, one layer, and the prefetched layer.
        """
        weights = FLOAT32 * self._parameters(shape) // world_size
        trained = FLOAT32 * self._trained_parameters(shape) // world_size
        gradient = 0 if self._lora else FLOAT32
        root = (1 if shape.tied else 2) * shape.embedding * (self._compute_dtype.itemsize + gradient)
        layers = 2 * shape.layer * self._compute_dtype.itemsize
        gathered = root + layers if world_size > 1 else 0
        return {"weights": weights, "gradients": trained, "optimizer": 2 * trained, "gathered": gathered}

    def _shard(self) -> None:
        if self._compile_layers:
            from trainer_adapters.compiled_layers import compile_layers

            compile_layers(self._scorer.layers)
        checkpoint_layers(self._scorer.layers, self._activation_checkpointing)
        self._sharded = self._spec.world_size > 1 or self._compute_dtype is not torch.float32
        if self._sharded:
            self._shard_fully()
        else:
            self._scorer.to(self.device)
        self.reset_optimizer()

    def _shard_fully(self) -> None:
        whole = {n: p.detach() for n, p in self._model.named_parameters()} if self._spec.rank == 0 else {}
        mesh = init_device_mesh(self.device.type, (self._spec.world_size,))
        precision = MixedPrecisionPolicy(
            param_dtype=self._compute_dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
        )
        for layer in self._scorer.layers:
            fully_shard(layer, mesh=mesh, mp_policy=precision)
        fully_shard(self._scorer, mesh=mesh, mp_policy=precision)
        for module in self._scorer.modules():
            if isinstance(module, FSDPModule):
                # A plain sum: gloo has no other way to avoid the division by the number of ranks.
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
        if self._spec.world_size > 1:
            scatter_weights(self._model, whole)

    # --- scoring and learning -----------------------------------------------------------------

    def _score(self, batch: PackedBatch, entropy: bool, own: bool = False) -> Scores:
        return self._scorer(batch, entropy, own)

    def backward(self, loss: torch.Tensor) -> None:
        loss.backward()

    def step(self) -> StepReport:
        gradients = [local_part(p.grad) for _, p in self._trained() if p.grad is not None]
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
        """Returns the norm over all ranks, as the root of summed squares: no gradient is replicated."""
        square = torch.nn.utils.get_total_norm(gradients).to(self.device, torch.float64).square()
        dist.all_reduce(square)
        return square.sqrt().item()

    def reset_optimizer(self) -> None:
        """Resets the moments, and allocates them.

        So a lack of memory fails at start, and every checkpoint has the same keys.
        """
        parameters = [parameter for _, parameter in self._trained()]
        self._optimizer = self._adamw(parameters)
        for parameter in parameters:
            self._optimizer.state[parameter] = self._fresh_moments(parameter)

    # --- parameters ---------------------------------------------------------------------------

    def _served(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        self._reshard()
        return super()._served()

    def _trained(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        self._reshard()
        return super()._trained()

    def _reshard(self) -> None:
        """Reshards parameters left gathered by a forward without backward, which a step would make stale."""
        if self._sharded:
            self._scorer.reshard()

    def _full(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        return full(parameter).contiguous()  # with one rank, the shard itself

    def _held(self) -> Iterator[torch.Tensor]:
        self._reshard()
        if any(parameter.grad is not None for parameter in self._scorer.parameters()):
            raise RuntimeError(GRADIENT)
        yield from map(local_part, self._scorer.parameters())
        for moments in self._optimizer.state.values():
            yield from map(local_part, moments.values())

    def shards(self) -> list[torch.Tensor]:
        return [local_part(parameter).detach() for _, parameter in self._trained()]

    def adopt(self) -> None:
        self._check_onloaded()
        self._reshard()

    # --- checkpoints --------------------------------------------------------------------------

    def _state(self) -> dict[str, torch.Tensor]:
        """Returns the shards themselves, which `save` writes and `_restore` fills."""
        state = {}
        for name, parameter in self._trained():
            state[f"model.{name}"] = parameter.detach()
            for moment, tensor in self._optimizer.state[parameter].items():
                state[f"optimizer.{moment}.{name}"] = tensor
        return state

    def _restore(self, directory: Path) -> None:
        self._checkpoints.load(self._state(), directory)


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """Returns this rank's shard of a tensor, or the complete tensor if it is not sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def full(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the full tensor, gathered from all ranks. It is a collective."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
