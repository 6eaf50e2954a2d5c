"""The time for which requests wait for a server that cannot generate.

Requests wait while weights are lost, and while the server sleeps. `update_ledger` begins and ends the time.
The routes of generation end requests when it has passed.
"""

import asyncio

from contracts.errors import ContractError, ErrorCode


class HeldRequests:
    """How long requests wait. `timed_out` is set `timeout_s` after `begin`, unless `end` comes first."""

    def __init__(self, timeout_s: float):
        self.timed_out = asyncio.Event()
        self.timeout_s = timeout_s
        self._timer: asyncio.TimerHandle | None = None
        self._reason = (ErrorCode.WEIGHTS_LOST, "")

    def begin(self, code: ErrorCode, why: str) -> None:
        """Begins to count, again if it has begun. `code` and `why` are those of `error` from now on."""
        self.end()
        self._reason = (code, why)
        self._timer = asyncio.get_running_loop().call_later(self.timeout_s, self.timed_out.set)

    def end(self) -> None:
        """Stops counting, because requests are answered again."""
        self.timed_out.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def error(self) -> ContractError:
        """Returns the error of a request that has waited in vain."""
        return ContractError(*self._reason)
