"""The settings of the inference kit.

A correct server passes with the defaults, unless it computes in bfloat16, restarts slowly, or runs on another
machine.
"""

from dataclasses import dataclass, field
from typing import Any

PATIENCE = 15  # factor of timeout_s: a busy machine has paused a correct server for 10 s


def setting(default: object, help_text: str) -> Any:
    """Returns a dataclass field with the help text of its command-line option."""
    return field(default=default, metadata={"help": help_text})


@dataclass(frozen=True)
class Settings:
    """The settings of a run of the kit. Raises ValueError for too few updates."""

    token: str | None = setting(None, "bearer token of the servers")
    thorough: bool = setting(False, "try everything: more cases and requests; takes many minutes")
    updates: int = setting(50, "weight updates of G8, 8 at least")
    dtype: str | None = setting(
        None, "round weights to it before they are sent, e.g. to the server's bfloat16"
    )
    tolerance: float = setting(1e-3, "nats by which a log-probability may be off; bfloat16 needs about 0.2")
    timeout_s: float = setting(2.0, "timeout_s of joins and updates")
    grace_s: float = setting(10.0, "what a server may take beyond timeout_s; 10 by the contract")
    answer_s: float = setting(120.0, "how long a single answer may take, a long completion included")
    restart_s: float = setting(600.0, "how long a server may say `loading` after a failure")
    address: str = setting("127.0.0.1", "this machine's, as the servers reach it")

    @property
    def patience_s(self) -> float:
        """The `timeout_s` of joins and updates that should not time out even on a busy machine."""
        return PATIENCE * self.timeout_s

    def __post_init__(self) -> None:
        if self.updates < 8:
            raise ValueError(f"{self.updates} updates are too few to see memory grow: 8 at least")
