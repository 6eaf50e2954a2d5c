"""The options of `DiLoCoTrainer`, which documents them, and what they may be."""

import re
from dataclasses import dataclass

from trainer_adapters.islands.quantise import QUANTISERS

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
LIMITED = 3  # parts of an attempt that each take timeout_s at most: finding the others, fetching, exchanging


@dataclass(frozen=True)
class IslandOptions:
    """Raises ValueError, in one sentence, for an option that no island can have."""

    every: int | None
    outer_lr: float
    outer_momentum: float
    quantise: str
    island: str
    attempts: int
    max_behind: int
    lighthouse: str | None
    address: str
    wait_s: float
    timeout_s: float
    keep: int
    directory: str

    def __post_init__(self) -> None:
        if self.every is not None and (type(self.every) is not int or self.every < 1):
            raise ValueError(f"every must be a positive number of updates or null, not {self.every!r}")
        if not self.outer_lr > 0:
            raise ValueError(f"outer_lr must be a positive number, not {self.outer_lr!r}")
        if not 0 <= self.outer_momentum < 1:
            raise ValueError(f"outer_momentum must be at least 0 and below 1, not {self.outer_momentum!r}")
        if self.quantise not in QUANTISERS:
            raise ValueError(f"quantise must be {' or '.join(QUANTISERS)}, not {self.quantise!r}")
        if type(self.attempts) is not int or self.attempts < 1:
            raise ValueError(f"attempts must be a positive number, not {self.attempts!r}")
        for name, least in (("max_behind", 0), ("keep", 1)):
            if type(getattr(self, name)) is not int or getattr(self, name) < least:
                raise ValueError(f"{name} must be a number of rounds, not {getattr(self, name)!r}")
        for name in ("wait_s", "timeout_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be a positive number of seconds, not {getattr(self, name)!r}")
        if not isinstance(self.island, str) or not NAME.fullmatch(self.island):
            raise ValueError(
                f"island must be a name of letters, digits, '.', '_' and '-', not {self.island!r}"
            )
        if self.lighthouse is not None and not str(self.lighthouse).startswith("http://"):
            raise ValueError(f"lighthouse must be http://HOST:PORT or null, not {self.lighthouse!r}")

    @property
    def period(self) -> int:
        """`every`, where there are rounds."""
        return self.every or 1

    @property
    def longest_wait_s(self) -> float:
        """The longest time that a round can take beside what it computes."""
        return 0 if self.lighthouse is None else self.attempts * (self.wait_s + LIMITED * self.timeout_s)
