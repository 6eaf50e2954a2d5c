"""Reads and writes weights and AdamW moments as full tensors, although ZeRO flattens and partitions them.

It hides which of DeepSpeed's optimizers is in use: stages 1 and 2, stage 1 with bfloat16, or stage 3. Access
to a parameter is a collective: all ranks must access the same one.
"""

from collections import deque
from collections.abc import Callable, Iterator

import torch
from deepspeed.runtime.zero import GatheredParameters
from deepspeed.utils import (
    safe_get_full_fp32_param,
    safe_get_full_optimizer_state,
    safe_set_full_fp32_param,
    safe_set_full_optimizer_state,
    safe_set_local_fp32_param,
    safe_set_local_optimizer_state,
)

Tensors = dict[str, torch.Tensor]
ZERO = "deepspeed.runtime.zero"  # the package of its optimizers' parts
PARTITIONS = ("ds_tensor", "ds_secondary_tensor")  # of a parameter in stage 3
FLAT_MASTERS = (
    "fp32_partitioned_groups_flat",  # stage 3
    "fp32_groups_flat_partition",  # stage 1 under bfloat16
    "single_partition_of_fp32_groups",  # stages 1 and 2
)


class ZeroState:
    def __init__(self, zero: torch.optim.Optimizer, fresh: Callable[[torch.Tensor], dict]):
        """Wraps `zero`, DeepSpeed's optimizer around AdamW. `fresh` returns AdamW's initial state."""
        self._zero = zero
        self._fresh = fresh
        self.reset()

    def reset(self) -> None:
        """Resets the moments. Also creates them, because a checkpoint may be saved before the first step."""
        for flat in self._flat_masters():
            self._zero.optimizer.state[flat] = self._fresh(flat)
        if hasattr(self._zero, "_hp_optimizer_states_linked"):
            self._zero._hp_optimizer_states_linked = False
            self._zero._lazy_init_hp_params_optimizer_state()

    def _flat_masters(self) -> list[torch.Tensor]:
        """Returns this rank's float32 partitions, which the optimizer updates."""
        return next(getattr(self._zero, name) for name in FLAT_MASTERS if hasattr(self._zero, name))

    @property
    def steps(self) -> torch.Tensor:
        """AdamW's step count, equal for all parameters."""
        return self._zero.optimizer.state[self._flat_masters()[0]]["step"]

    @steps.setter
    def steps(self, steps: torch.Tensor) -> None:
        for flat in self._flat_masters():
            self._zero.optimizer.state[flat]["step"].copy_(steps)

    def tensors(self, parameters: list[torch.nn.Parameter]) -> Iterator[torch.Tensor]:
        """Yields the parameters, what DeepSpeed's optimizer refers to, and the gradients of both."""
        seen: set[int] = set()
        left: list[object] = [*parameters, self._zero]
        while left:
            value = left.pop()
            if id(value) in seen:
                continue
            seen.add(id(value))
            if isinstance(value, torch.Tensor):
                yield value
                if value.is_leaf:
                    left += [value.grad, *(getattr(value, name, None) for name in PARTITIONS)]
            elif isinstance(value, dict):
                left += [*value, *value.values()]
            elif isinstance(value, list | tuple | set | deque):
                left += value
            elif (
                value is self._zero
                or isinstance(value, torch.optim.Optimizer)
                or type(value).__module__.startswith(ZERO)
            ):
                left += vars(value).values()

    def weight(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        """Returns the full float32 weight. A frozen parameter has no float32 master, so it is converted."""
        if not parameter.requires_grad:
            with GatheredParameters([parameter]):
                return parameter.detach().to(torch.float32, copy=True)
        return safe_get_full_fp32_param(parameter)

    def moment(self, parameter: torch.nn.Parameter, name: str) -> torch.Tensor:
        return safe_get_full_optimizer_state(parameter, name)

    def own_part(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        """Returns a view of this rank's [N] elements of a trained float32 weight, without padding.

        It is not a collective. After writing to the views, call `publish`.
        """
        if not hasattr(parameter, "ds_id"):
            mapping = parameter._hp_mapping  # None if another rank has the whole parameter
            if mapping is None:
                return torch.empty(0, device=parameter.device)
            return mapping.get_hp_fragment().detach()
        padded, _ = self._zero._get_fp32_opt_state_partition(parameter, release_swap_buffers=False)
        begin = torch.distributed.get_rank() * padded.numel()
        return padded.detach()[: max(0, parameter.ds_numel - begin)]

    def put(self, parameter: torch.nn.Parameter, weight: torch.Tensor, moments: Tensors) -> None:
        """Replaces weight and moments by full tensors. After replacing all parameters, call `publish`."""
        if hasattr(parameter, "ds_id"):
            self._put_partition(parameter, weight, moments)
            return
        safe_set_full_fp32_param(parameter, weight)
        for name, moment in moments.items():
            safe_set_full_optimizer_state(parameter, moment, name)

    def _put_partition(self, parameter: torch.nn.Parameter, weight: torch.Tensor, moments: Tensors) -> None:
        """Replaces the tensors of stage 3. Partitions them here, because DeepSpeed does not pad the last."""
        safe_set_local_fp32_param(parameter, _partition(parameter, weight))
        for name, moment in moments.items():
            safe_set_local_optimizer_state(parameter, _partition(parameter, moment), name)

    def publish(self) -> None:
        """Makes the model compute with the replaced weights."""
        if hasattr(self._zero, "update_lp_params"):
            self._zero.update_lp_params()
        else:
            self._publish_partitions()

    def _publish_partitions(self) -> None:
        """Copies stage 3's partitions into the model, as the end of DeepSpeed's step does."""
        self._zero.checkpoint_event_prologue()  # frees what is gathered
        for group in range(len(self._flat_masters())):
            self._zero._reassign_or_swap_out_partitioned_parameters(group)
        self._zero.checkpoint_event_epilogue()  # gathers the small parameters that stay gathered


def _partition(parameter: torch.nn.Parameter, whole: torch.Tensor) -> torch.Tensor:
    """Returns this rank's padded partition of a full stage 3 tensor."""
    size = parameter.ds_tensor.ds_numel
    rank = torch.distributed.get_rank()
    own = whole.flatten()[rank * size : (rank + 1) * size]
    return torch.nn.functional.pad(own, (0, size - own.numel()))
