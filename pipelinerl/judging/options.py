"""The section `judging` of the configuration."""

import os
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

REUSED = "_reused_"  # in a verifier's specification: it evaluates no text, so its worker may judge many
Int = Annotated[int, Field(strict=True)]


class JudgingConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    workers: Int | None = Field(
        None, ge=1, le=1024, description="Processes that judge; null = one less than cores."
    )
    isolation: Literal["auto", "process", "sealed"] = Field(
        "auto", description="What confines a worker; auto = the strongest that passes its self-test."
    )
    require: Literal["process", "sealed"] | None = Field(
        None, description="Isolation without which the run is refused; null = whatever there is."
    )
    verdict_s: float = Field(5.0, gt=0, description="Longest time for one answer, from its start on.")
    queue_s: float = Field(300.0, gt=0, description="Longest wait for a worker, before it counts as failed.")
    max_waiting: Int | None = Field(
        None,
        ge=1,
        description="Unjudged answers beyond which no group begins; null = 2 x requests that servers take.",
    )
    retries: Int = Field(
        1, ge=0, description="Times that the same answer is given again to a verifier that failed."
    )
    memory_bytes: Int = Field(4 << 30, ge=1 << 30, description="Address space of one worker.")
    max_characters: Int = Field(
        20_000,
        ge=1,
        le=2**20,
        description="Longest answer that is judged, as the verifier cuts it out of the text.",
    )
    verifiers: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="By name, `_target_` and options; the domain's own are added."
    )

    @field_validator("verifiers")
    @classmethod
    def _named_classes(cls, verifiers: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for name, spec in verifiers.items():
            if not isinstance(spec.get("_target_"), str):
                raise ValueError(f"judging.verifiers.{name} needs a _target_: the path of its class")
        return verifiers

    @model_validator(mode="after")
    def _possible(self) -> "JudgingConfig":
        if self.isolation == "process" and self.require == "sealed":
            raise ValueError("judging.isolation=process cannot be the sealed that judging.require asks for")
        return self

    @property
    def reused(self) -> list[str]:
        """The names of the verifiers whose workers judge one text after another."""
        return [name for name, spec in self.verifiers.items() if spec.get(REUSED)]

    @property
    def processes(self) -> int:
        """The number of workers."""
        return self.workers or max(1, (os.cpu_count() or 2) - 1)
