"""Low-rank adapters (LoRA, arXiv 2106.09685) of the linear layers in a model's decoder layers, by peft.

An adapted weight is W + (alpha / rank) B A. W is frozen; initially A is random and B is 0. peft replaces a
layer by a module with A, B and the frozen layer. The functions here return frozen parameters under their
names in the base model. This module must not depend on sharding or optimizers.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import ClassVar

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel

from contracts.model_shape import ModelShape

ALL_LINEAR = "all-linear"
ADAPTER = "default"  # peft's name of a model's only adapter
# Layers that peft refuses, and the model types in which it does: fused kernels read their weights.
REFUSED = ("out_proj",)
WITH_REFUSED = ("falcon_h1", "falcon_mamba", "mamba", "mamba2", "nemotron_h")
FACTORS = (f".lora_A.{ADAPTER}.weight", f".lora_B.{ADAPTER}.weight")


@dataclass(frozen=True)
class LoRA:
    """The settings of the adapters.

    rank: number of rows of A and of columns of B.
    alpha: scale of the update: it is alpha / rank * B A.
    targets: names of the layers to adapt, such as q_proj; or all-linear: every `torch.nn.Linear` in the
        decoder layers. Subclasses are excluded, because they may use their weight in other ways.
    """

    KEYS: ClassVar = ("rank", "alpha", "targets")

    rank: int
    alpha: float
    targets: tuple[str, ...] | str = ALL_LINEAR

    def __post_init__(self) -> None:
        if type(self.rank) is not int or self.rank < 1:
            raise ValueError(f"lora.rank must be a positive whole number, not {self.rank!r}")
        is_number = isinstance(self.alpha, int | float) and not isinstance(self.alpha, bool)
        if not is_number or not 0 < self.alpha < math.inf:
            raise ValueError(f"lora.alpha must be a positive number, not {self.alpha!r}")
        names = self.targets if isinstance(self.targets, tuple) else ()
        if self.targets != ALL_LINEAR and not (names and all(isinstance(n, str) and n for n in names)):
            raise ValueError(f"lora.targets must be {ALL_LINEAR} or a list of names, not {self.targets!r}")

    @classmethod
    def of(cls, options: object) -> "LoRA":
        """Returns the settings in a mapping. Raises ValueError for an unknown or missing key."""
        if not isinstance(options, Mapping):
            raise ValueError(f"lora must be null or have rank and alpha, not {options!r}")
        if unknown := [key for key in options if key not in cls.KEYS]:
            raise ValueError(f"lora.{unknown[0]} cannot be set: lora has {', '.join(cls.KEYS)} alone")
        if lacking := [key for key in ("rank", "alpha") if key not in options]:
            raise ValueError(f"lora.{lacking[0]} must be set, for example lora={{rank: 16, alpha: 32}}")
        given = dict(options)
        if isinstance(given.get("targets"), list):
            given["targets"] = tuple(given["targets"])
        return cls(**given)

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    def parameters(self, shape: ModelShape) -> int:
        """Returns the number of elements of A and B, assuming that all linear layers are adapted."""
        attended = shape.heads * shape.head_dim
        keys = shape.kv_heads * shape.head_dim
        attention = 2 * (shape.hidden_size + attended) + 2 * (shape.hidden_size + keys)
        feed_forward = 3 * (shape.hidden_size + shape.intermediate_size)
        return shape.layers * self.rank * (attention + feed_forward)

    # --- layers -------------------------------------------------------------------------------

    def unfit(self, config: PretrainedConfig) -> str | None:
        """Returns a message if a model of this config cannot be adapted, else None."""
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
            if why := self._unmatched(model):
                return why
            if find_spec("peft") is None:  # `missing` says so
                return None
            return self._misadapted(model)

    def _unmatched(self, model: PreTrainedModel) -> str | None:
        there = list(dict.fromkeys(name.rpartition(".")[2] for name in _linear_layers(model)))
        refused = [name for name in there if name in REFUSED and model.config.model_type in WITH_REFUSED]
        rest = ", ".join(name for name in there if name not in refused)
        if refused and (self.targets == ALL_LINEAR or refused[0] in self.targets):
            return f"has layers {refused[0]}, which peft does not adapt: set lora.targets to some of [{rest}]"
        wanted = [] if self.targets == ALL_LINEAR else self.targets
        if unmatched := [name for name in wanted if name not in there]:
            return (
                f"has no linear layer {unmatched[0]} in its decoder layers, which lora.targets names; "
                f"it has {', '.join(there) or 'none'}"
            )
        return None if there else "has no linear layer in its decoder layers for lora to adapt"

    def inject(self, model: PreTrainedModel) -> None:
        """Adds adapters to the model, and freezes all other parameters.

        Raises ValueError if the model has no layer of a target's name.
        """
        if why := self._unmatched(model) or self._misadapted(model):
            raise ValueError(f"{type(model).__name__} {why}")
        model.eval()

    def _misadapted(self, model: PreTrainedModel) -> str | None:
        """Adds adapters by peft. Returns a message if it adapts other layers than it is asked to."""
        from peft import LoraConfig, inject_adapter_in_model

        targets = [
            name
            for name in _linear_layers(model)
            if self.targets == ALL_LINEAR or name.rpartition(".")[2] in self.targets
        ]
        config = LoraConfig(r=self.rank, lora_alpha=self.alpha, target_modules=targets, task_type="CAUSAL_LM")
        inject_adapter_in_model(config, model, ADAPTER)
        adapted = adapted_layers(model)
        left_out = {name.rpartition(".")[2] for name in targets if f"{name}.weight" not in adapted}
        if not left_out and len(adapted) == len(targets):
            return None
        rest = dict.fromkeys(name.rpartition(".")[2] for name in targets)
        good = ", ".join(name for name in rest if name not in left_out)
        return f"has layers that peft adapts otherwise than asked: set lora.targets to some of [{good}]"


def _linear_layers(model: PreTrainedModel) -> list[str]:
    """Returns the names of the linear layers in the decoder layers, without subclasses, in order."""
    inside = set(getattr(model.get_decoder(), "layers", torch.nn.ModuleList()).modules())
    return [
        name for name, module in model.named_modules() if module in inside and type(module) is torch.nn.Linear
    ]


def adapted_layers(model: PreTrainedModel) -> dict[str, torch.nn.Module]:
    """Returns peft's modules by the base model's name of their weight, in the model's order."""
    from peft.tuners.lora import LoraLayer

    return {
        f"{name}.weight": module for name, module in model.named_modules() if isinstance(module, LoraLayer)
    }


def factors_of(layer: torch.nn.Module) -> tuple[torch.nn.Parameter, torch.nn.Parameter]:
    """Returns A and B of a module of peft."""
    return layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight


def base_parameters(
    model: PreTrainedModel, remove_duplicate: bool = True
) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """Yields all parameters except those of adapters, by the base model's names."""
    for name, parameter in model.named_parameters(remove_duplicate=remove_duplicate):
        if not name.endswith(FACTORS):
            yield name.replace(".base_layer.", "."), parameter
