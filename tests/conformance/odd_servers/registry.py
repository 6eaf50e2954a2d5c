"""The registry of odd servers: how each is made, and where it listens."""

from collections.abc import Callable
from dataclasses import dataclass

from contracts.limits import Limits
from inference_adapters.scripted import ScriptedEngine

TOKEN = "secret"
TOKEN_DELAY_S = 0.002


@dataclass(frozen=True)
class Odd:
    make: Callable[[], ScriptedEngine]
    host: str  # where it listens
    path: str  # what precedes every route
    limits: Limits | None
    on: tuple[tuple[str, str], ...]  # the guarantees, with their parts, that its peculiarity affects most

    def url(self, port: int) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{port}{self.path}"


ODD: dict[str, Odd] = {}


def odd(
    *,
    on: str,
    token_delay_s: float = TOKEN_DELAY_S,
    host: str = "127.0.0.1",
    path: str = "",
    limits: Limits | None = None,
) -> Callable:
    """Registers an engine class, or a function that changes the server around an ordinary engine.

    `on` are the parts of guarantees that it affects most, such as "G2/several G9/streams".
    """
    parts = tuple((code, part) for code, _, part in (each.partition("/") for each in on.split()))

    def register(strange: Callable) -> Callable:
        def make() -> ScriptedEngine:
            if isinstance(strange, type):
                return strange(token_delay_s)
            strange()
            return ScriptedEngine(token_delay_s)

        ODD[strange.__name__] = Odd(make, host, path, limits, parts)
        return strange

    return register
