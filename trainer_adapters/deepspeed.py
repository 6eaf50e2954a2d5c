"""DeepSpeedTrainer: the trainer contract on DeepSpeed's ZeRO, stages 1 to 3, CPU (gloo) and CUDA (NCCL).

Stage 1 shards the optimizer state, stage 2 also the gradients, and stage 3 also the parameters, which are
gathered layer by layer. DeepSpeed averages gradients over ranks and accumulation steps, but the contract
requires their sum. So losses are multiplied by the number of ranks, and DeepSpeed's accumulation is not used.

On a CPU, DeepSpeed compiles a communication kernel at first use, which needs a C++ compiler and ninja.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.distributed as dist

from contracts.model_shape import ModelShape
from contracts.trainer import Footprint, PackedBatch, StepReport, TokenScores
from trainer_adapters.activation_checkpointing import checkpoint_layers
from trainer_adapters.hugging_face_trainer import GRADIENT, MOMENTS, HuggingFaceTrainer
from trainer_adapters.layers.kinds import read_along
from trainer_adapters.learning_rate import learning_rate
from trainer_adapters.memory import FLOAT32
from trainer_adapters.start_check import Scores

LIVE = 10**9  # elements, DeepSpeed's default
BUCKET = 5 * 10**8  # elements, DeepSpeed's default
TRUE_TO_T2 = "gradients are summed over ranks in float32, whatever the model"
DECIDED = {
    "optimizer": "the run's optimizer section decides",
    "scheduler": "the run's optimizer section decides",
    "gradient_clipping": "optimizer.max_grad_norm decides",
    "train_batch_size": "the run's batch_size decides",
    "train_micro_batch_size_per_gpu": "the packing decides",
    "gradient_accumulation_steps": "the packing decides",
    "managed_gradient_accumulation": "the trainer contract decides",
    "fp16": "compute_dtype decides (float32 or bfloat16)",
    "bf16": "compute_dtype decides",
    "data_types": TRUE_TO_T2,
    "communication_data_type": TRUE_TO_T2,
    "prescale_gradients": TRUE_TO_T2,
    "gradient_predivide_factor": TRUE_TO_T2,
    "amp": "compute_dtype decides",
    "torch_autocast": "compute_dtype decides",
    "sequence_parallel_size": "every rank is a data-parallel one",
    "tensor_parallel": "every rank is a data-parallel one",
    "zero_allow_untested_optimizer": "the optimizer is torch's AdamW",
    "zero_force_ds_cpu_optimizer": "the optimizer is torch's AdamW",
}


class DeepSpeedTrainer(HuggingFaceTrainer):
    """A trainer on DeepSpeed. Its options, in addition to those of HuggingFaceTrainer:

    zero_stage: 1, 2 or 3.
    config: parts of DeepSpeed's JSON configuration that the contract does not fix, such as
        `{"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}`.
    """

    def __init__(self, *, zero_stage: int = 2, config: dict[str, object] | None = None, **options: object):
        super().__init__(**options)
        if zero_stage not in (1, 2, 3) or isinstance(zero_stage, bool):
            raise ValueError(f"zero_stage must be 1, 2 or 3, not {zero_stage!r}")
        if self._activation_checkpointing == "selective" and zero_stage == 3:
            raise ValueError(
                "activation_checkpointing=selective cannot be set with zero_stage=3: there a layer that is "
                "computed again may gather other parameters than before; set true, or zero_stage 1 or 2"
            )
        config = dict(config or {})
        for key in config.keys() & DECIDED.keys():
            raise ValueError(f"config.{key} cannot be set: {DECIDED[key]}")
        zero = dict(config.pop("zero_optimization", None) or {})
        if "stage" in zero:
            raise ValueError("config.zero_optimization.stage cannot be set: zero_stage decides")
        for part in ("offload_optimizer", "offload_param"):
            if (zero.get(part) or {}).get("device") == "nvme":
                raise ValueError(f"config.zero_optimization.{part}.device: cpu, or no offloading; not nvme")
        self._zero = {"overlap_comm": zero_stage == 3, **zero, "stage": zero_stage}
        self._config = config

    @property
    def missing(self) -> str | None:
        if not find_spec("deepspeed"):
            return "deepspeed is not installed: pip install -e '.[deepspeed]'"
        return super().missing

    def _state_memory(self, shape: ModelShape, world_size: int) -> dict[str, int]:
        """Returns the bytes of the ZeRO state on the device, without offloaded state.

        "gathered": the maximum that stage 3 gathers at a time, and the float32 bucket of gradient reduction.
        """
        stage = self._zero["stage"]
        value = self._compute_dtype.itemsize

        def on_device(part: str, elements: int) -> int:
            return 0 if self._is_offloaded(part) else elements

        shard = self._parameters(shape) // world_size
        trained = self._trained_parameters(shape)
        live = min(shape.parameters, int(self._zero.get("stage3_max_live_parameters", LIVE))) * (stage == 3)
        bucket = min(trained, int(self._zero.get("reduce_bucket_size", BUCKET)))
        masters = FLOAT32 * on_device("optimizer", trained // world_size)
        return {
            "weights": value * (on_device("param", shard) if stage == 3 else self._parameters(shape)),
            "gradients": FLOAT32 * on_device("optimizer", trained // world_size if stage > 1 else trained),
            "optimizer": 3 * masters,  # master weights and two moments
            "gathered": value * live + FLOAT32 * bucket,
        }

    def footprint(self, shape: ModelShape, world_size: int) -> Footprint:
        """Offloaded state is held by every rank. Saving gathers a checkpoint into host memory, and copies it.

        An offloaded optimizer has gradients, master weights and two moments in float32.
        """
        found = super().footprint(shape, world_size)
        trained = self._trained_parameters(shape) // world_size
        optimizer = 4 * FLOAT32 * trained * self._is_offloaded("optimizer")
        stage_3 = self._zero["stage"] == 3
        weights = self._compute_dtype.itemsize * self._parameters(shape) // world_size
        weights *= stage_3 and self._is_offloaded("param")
        return replace(found, rank=optimizer + weights, saving=2 * found.saving)

    def _is_offloaded(self, part: str) -> bool:
        return (self._zero.get(f"offload_{part}") or {}).get("device") == "cpu"

    # --- sharding -----------------------------------------------------------------------------

    def _shard(self) -> None:
        # DeepSpeed reads both from its launcher's environment.
        os.environ.setdefault("DS_ACCELERATOR", self.device.type)
        os.environ.setdefault("LOCAL_RANK", str(self.device.index or 0))
        import deepspeed

        from trainer_adapters.zero_start import place
        from trainer_adapters.zero_state import ZeroState

        backend = "nccl" if self.device.type == "cuda" else "gloo"
        deepspeed.init_distributed(dist_backend=backend, verbose=False)
        checkpoint_layers(self._scorer.layers, self._activation_checkpointing)
        if self._zero["stage"] == 3:
            # They run once per length class, of which ranks have different numbers: gathered once a layer.
            for module in read_along(self._scorer.layers):
                deepspeed.utils.set_z3_leaf_module(module, True)
        masters = self._float32_masters()
        self._unrounded = self._kept_in_float32()
        settings = self._settings()
        place(self._scorer, self.device, self._compute_dtype, settings)
        self._engine, *_ = deepspeed.initialize(
            model=self._scorer,
            optimizer=self._adamw([parameter for _, parameter in self._trained()]),
            config=settings,
            dist_init_required=False,
        )
        if self._zero["stage"] == 3:
            deepspeed.zero.register_external_parameter(
                self._scorer, self._model.get_output_embeddings().weight
            )
        self._states = ZeroState(self._engine.optimizer, self._fresh_moments)
        self._put_masters(masters)
        self._accumulated = False  # True if there was a backward since the last step
        self._awaits_backward = False  # True after a forward with a gradient, until its backward

    def _float32_masters(self) -> dict[str, torch.Tensor]:
        """Returns the loaded float32 weights on rank 0. DeepSpeed creates its masters from bfloat16 ones."""
        if self._compute_dtype is torch.float32 or self._spec.rank > 0:
            return {}
        return {name: parameter.detach() for name, parameter in self._trained()}

    def _kept_in_float32(self) -> dict[torch.nn.Parameter, torch.Tensor]:
        """Returns the frozen weights that bfloat16 cannot represent, in rank 0's host memory.

        They have no float32 master. A model whose files are in bfloat16 has no such weights.
        """
        if self._compute_dtype is torch.float32 or self._spec.rank > 0:
            return {}
        return {
            parameter: parameter.detach()
            for _, parameter in self._served()
            if not parameter.requires_grad and (parameter != parameter.to(self._compute_dtype)).any()
        }

    @torch.no_grad()
    def _put_masters(self, masters: dict[str, torch.Tensor]) -> None:
        if self._compute_dtype is torch.float32:
            return
        for name, parameter in self._trained():
            whole = masters.pop(name) if masters else torch.empty(self._shape(parameter))
            whole = whole.to(self.device)
            dist.broadcast(whole, src=0)
            self._states.put(parameter, whole, {})
        self._states.publish()

    def _settings(self) -> dict[str, object]:
        half = self._compute_dtype is torch.bfloat16
        overlap = self._zero["overlap_comm"] and self.device.type == "cuda"  # a CPU has no streams
        trained = sum(parameter.numel() for _, parameter in self._trained())
        bucket = min(trained, int(self._zero.get("reduce_bucket_size", BUCKET)))  # stage 3 allocates it whole
        return {
            **self._config,
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            "managed_gradient_accumulation": False,
            "gradient_clipping": self._spec.optimizer.max_grad_norm,
            "bf16": {"enabled": half},
            "data_types": {"grad_accum_dtype": "fp32"},
            "communication_data_type": "fp32",
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "zero_optimization": {**self._zero, "overlap_comm": overlap, "reduce_bucket_size": bucket},
        }

    def close(self) -> None:
        self._engine.destroy()
        super().close()

    # --- scoring and learning -----------------------------------------------------------------

    def _score(self, batch: PackedBatch, entropy: bool, own: bool = False) -> Scores:
        return self._engine(batch, entropy, own)

    def forward(self, batch: PackedBatch, grad: bool = True, entropy: bool = False) -> TokenScores:
        if grad and self._awaits_backward and self._zero["stage"] == 3:
            raise NotImplementedError(
                "with zero_stage=3 each forward needs its backward before the next: "
                "DeepSpeed's gradient would be wrong; call backward, or use zero_stage 1 or 2"
            )
        self._awaits_backward = grad or self._awaits_backward
        return super().forward(batch, grad, entropy)

    def backward(self, loss: torch.Tensor) -> None:
        self._awaits_backward = False
        self._engine.backward(loss * self._spec.world_size, scale_wrt_gas=False)
        self._accumulated = True

    def step(self) -> StepReport:
        self._check_onloaded()
        if not self._accumulated:  # DeepSpeed cannot step without a gradient, which may be zero
            self.backward(self.forward(PackedBatch.pack([])).logprobs.sum())
        rate = learning_rate(self._spec.optimizer, int(self._closed_steps))
        for group in self._engine.optimizer.param_groups:
            group["lr"] = rate
        self._engine.step()
        self._closed_steps += 1
        self._accumulated = False
        self._awaits_backward = False
        norm = float(self._engine.get_global_grad_norm())
        return StepReport(grad_norm=norm, learning_rate=rate, skipped=not self._engine.was_step_applied())

    def reset_optimizer(self) -> None:
        self._check_onloaded()
        self._states.reset()

    # --- weights and checkpoints --------------------------------------------------------------

    def _shape(self, parameter: torch.nn.Parameter) -> torch.Size:
        return getattr(parameter, "ds_shape", parameter.shape)  # in stage 3 `parameter.shape` is [0]

    def _full(self, parameter: torch.nn.Parameter) -> torch.Tensor:
        weight = self._states.weight(parameter).view(self._shape(parameter))
        return self._unrounded[parameter].to(self.device) if parameter in self._unrounded else weight

    def _held(self) -> Iterator[torch.Tensor]:
        if self._accumulated:
            raise RuntimeError(GRADIENT)
        yield from self._states.tensors([*self._scorer.parameters()])
        yield from self._unrounded.values()

    def shards(self) -> list[torch.Tensor]:
        return [self._states.own_part(parameter) for _, parameter in self._trained()]

    @torch.no_grad()
    def adopt(self) -> None:
        self._check_onloaded()
        self._states.publish()

    @torch.no_grad()
    def _state(self) -> dict[str, torch.Tensor]:
        """Gathers the parameters one by one, and returns those that this rank saves."""
        state = {}
        for index, (name, parameter) in enumerate(self._trained()):
            whole = {f"model.{name}": self._states.weight(parameter)}
            whole |= {f"optimizer.{m}.{name}": self._states.moment(parameter, m) for m in MOMENTS}
            if index % self._spec.world_size == self._spec.rank:
                shape = self._shape(parameter)
                state |= {key: tensor.view(shape).cpu() for key, tensor in whole.items()}
                state[f"optimizer.step.{name}"] = self._states.steps.cpu()
        return state

    @torch.no_grad()
    def _restore(self, directory: Path) -> None:
        for name, parameter in self._trained():
            keys = [f"model.{name}", *(f"optimizer.{m}.{name}" for m in MOMENTS)]
            whole = {key: torch.empty(self._shape(parameter), device=self.device) for key in keys}
            steps = torch.zeros(())
            self._checkpoints.load(whole | {f"optimizer.step.{name}": steps}, directory)
            weight, *moments = whole.values()
            self._states.put(parameter, weight, dict(zip(MOMENTS, moments, strict=True)))
        self._states.steps = steps
        self._states.publish()
