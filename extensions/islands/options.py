"""The options of `DiLoCoTrainer`, which documents them, with their checks."""

import math
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from extensions.islands.quantise import QUANTISERS

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
LONGEST_S = 86_400.0  # torchft refuses to wait for much longer
LIMITED = 4  # multiple of timeout_s in a try: find the others, twice for their records, exchange


@dataclass(frozen=True)
class IslandOptions:
    """The options. The constructor raises ValueError, in one sentence, for an invalid option."""

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
        if not 0 < _number("outer_lr", self.outer_lr) < math.inf:
            raise ValueError(f"outer_lr must be a positive number, not {self.outer_lr!r}")
        if not 0 <= _number("outer_momentum", self.outer_momentum) < 1:
            raise ValueError(f"outer_momentum must be at least 0 and below 1, not {self.outer_momentum!r}")
        if self.quantise not in QUANTISERS:
            raise ValueError(f"quantise must be {' or '.join(QUANTISERS)}, not {self.quantise!r}")
        if type(self.attempts) is not int or self.attempts < 1:
            raise ValueError(f"attempts must be a positive number, not {self.attempts!r}")
        for name, least in (("max_behind", 0), ("keep", 1)):
            if type(getattr(self, name)) is not int or getattr(self, name) < least:
                raise ValueError(f"{name} must be a number of rounds, not {getattr(self, name)!r}")
        for name in ("wait_s", "timeout_s"):
            if not 0 < _number(name, getattr(self, name)) <= LONGEST_S:
                raise ValueError(
                    f"{name} must be a positive number of seconds up to a day, not {getattr(self, name)!r}"
                )
        self._check_places()

    def _check_places(self) -> None:
        for name in ("address", "directory"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise ValueError(f"{name} must be a text, not {getattr(self, name)!r}")
        if not isinstance(self.island, str) or not NAME.fullmatch(self.island):
            raise ValueError(
                f"island must be a name of letters, digits, '.', '_' and '-', not {self.island!r}"
            )
        if self.lighthouse is not None and not _is_url(self.lighthouse):
            raise ValueError(f"lighthouse must be http://HOST:PORT or null, not {self.lighthouse!r}")

    @property
    def period(self) -> int:
        """`every`, or 1 without rounds."""
        return self.every or 1

    @property
    def longest_silence_s(self) -> float:
        """The longest time for which other ranks may wait for a rank that waits for islands."""
        return 0 if self.lighthouse is None else max(self.wait_s, 2 * self.timeout_s)

    @property
    def longest_wait_s(self) -> float:
        """The longest time of a round, without computation."""
        return 0 if self.lighthouse is None else self.attempts * (self.wait_s + LIMITED * self.timeout_s)


def _number(name: str, value: object) -> float:
    """Returns the value. Raises ValueError if it is not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"{name} must be a number, not {value!r}")
    return value


def _is_url(text: object) -> bool:
    """Returns True if the text is http://HOST:PORT."""
    try:
        parts = urlsplit(str(text))
        return parts.scheme == "http" and bool(parts.hostname) and bool(parts.port)
    except ValueError:  # of a port
        return False
