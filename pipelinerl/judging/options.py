"""The section `judging` of the configuration."""

import os
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

REUSED = "_reused_"  # key in a verifier's specification: it evaluates no text, so its worker may judge many
HOSTED = "_hosted_"  # key in a verifier's specification: it is a HostedVerifier, with its longest seconds
Int = Annotated[int, Field(strict=True)]


class JudgingConfig(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    workers: Int | None = Field(
        None, ge=1, le=1024, description="Processes that judge; null = number of cores - 1."
    )
    isolation: Literal["auto", "process", "sealed"] = Field(
        "auto", description="Isolation of a worker; auto = the strongest that passes its self-test."
    )
    require: Literal["process", "sealed"] | None = Field(
        None, description="Isolation without which the run is refused; null = any."
    )
    verdict_s: float = Field(5.0, gt=0, description="Longest time to judge one answer, without the queue.")
    queue_s: float = Field(300.0, gt=0, description="Longest wait of an answer for a worker.")
    max_waiting: Int | None = Field(
        None,
        ge=1,
        description="Unjudged answers at which no group starts; null = 2 x requests, or the programs.",
    )
    retries: Int = Field(1, ge=0, description="Retries of an answer whose verifier failed.")
    memory_bytes: Int = Field(4 << 30, ge=1 << 30, description="Address space of one worker.")
    max_characters: Int = Field(
        20_000, ge=1, le=2**20, description="Longest answer that is judged, as the verifier extracts it."
    )
    verifiers: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="Further verifiers, by name: `_target_` and options."
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
        """The names of the verifiers whose workers judge many texts."""
        return [name for name, spec in self.verifiers.items() if spec.get(REUSED)]

    @property
    def hosted(self) -> dict[str, dict[str, Any]]:
        """The verifiers that run in the service, by name."""
        return {name: spec for name, spec in self.verifiers.items() if spec.get(HOSTED)}

    def longest_s(self, verifier: str) -> float:
        """Returns the longest time of a verdict of this verifier, without the queue."""
        return float(self.verifiers.get(verifier, {}).get(HOSTED, self.verdict_s))

    @property
    def processes(self) -> int:
        return self.workers or max(1, (os.cpu_count() or 2) - 1)
