"""The keys of completions: of a request that was given up, the key is used again for the same prompt.

Otherwise a volunteer could get another draw by holding a task until the run asks again.
"""

import secrets
from collections import OrderedDict

from contracts.inference import SamplingParameters
from extensions.volunteers.gateway.ledger import sha256_of_ids

MOST = 10_000  # kinds of requests whose keys are remembered
KEY_BYTES = 32
Kind = tuple[str, SamplingParameters]


class DrawKeys:
    """Gives each completion a key, new ones only if no earlier request of its kind was given up."""

    def __init__(self) -> None:
        self._unused: OrderedDict[Kind, list[bytes]] = OrderedDict()

    def take(self, prompt: list[int], sampling: SamplingParameters) -> bytes:
        kind = (sha256_of_ids(prompt), sampling)
        keys = self._unused.get(kind)
        if not keys:
            return secrets.token_bytes(KEY_BYTES)
        key = keys.pop(0)
        if not keys:
            del self._unused[kind]
        return key

    def give_back(self, prompt: list[int], sampling: SamplingParameters, key: bytes) -> None:
        """Takes the key of a completion that was not answered."""
        kind = (sha256_of_ids(prompt), sampling)
        self._unused.setdefault(kind, []).append(key)
        self._unused.move_to_end(kind)
        if len(self._unused) > MOST:
            self._unused.popitem(last=False)
