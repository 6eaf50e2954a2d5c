"""The settings of a trainer's optimizer, without torch, which the configuration must not import."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimizerSpec(BaseModel):
    """AdamW with linear warm-up, then a constant or linearly decaying learning rate."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    lr: float = Field(gt=0, description="Peak learning rate.")
    betas: tuple[Beta, Beta] = Field((0.9, 0.95), description="AdamW betas.")
    eps: float = Field(1e-8, gt=0, description="AdamW epsilon.")
    weight_decay: float = Field(0.0, ge=0, description="Decoupled weight decay.")
    max_grad_norm: float = Field(1.0, gt=0, description="Gradients are clipped to this global norm.")
    warmup_steps: int = Field(0, ge=0, description="Linear warm-up; the first step has lr / warmup_steps.")
    decay_steps: int | None = Field(None, description="Linear decay from lr to 0 after it; null = none.")
