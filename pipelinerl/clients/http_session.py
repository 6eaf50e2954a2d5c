"""The HTTP session of the actor, publisher, probe and preprocessor."""

import aiohttp
from aiohttp.client_proto import ResponseHandler

from pipelinerl.clients.server_proof import ServerProofs

# Many servers close an idle connection after 5 s; a POST sent at that moment is lost.
KEEP_ALIVE_S = 2.0


def open_session(token: str | None, timeout_s: float | None = None) -> aiohttp.ClientSession:
    """Returns a session without a limit on connections. timeout_s: total time of a request.

    The session sends the token only to servers that prove they know it. It does not decompress answers,
    because a few kilobytes could become gigabytes.
    """
    headers = {"Accept-Encoding": "identity"}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    options = {"limit": 0, "keepalive_timeout": KEEP_ALIVE_S}
    return aiohttp.ClientSession(
        headers=headers,
        auto_decompress=False,
        connector=ProvingConnector(token, **options) if token else aiohttp.TCPConnector(**options),
        timeout=aiohttp.ClientTimeout(total=timeout_s),
    )


class ProvingConnector(aiohttp.TCPConnector):
    """A connector that uses a new connection only after its server has proved that it knows the token.

    The challenge is sent once the connection is open, so the process that then listens at the port must
    answer it. One case is not detected: a process that accepts the connection and then gives the port to a
    real server.
    """

    def __init__(self, token: str, **options: float):
        super().__init__(**options)
        self._proofs = ServerProofs(token)

    async def _create_connection(self, req, traces, timeout) -> ResponseHandler:  # type: ignore[override]
        protocol = await super()._create_connection(req, traces, timeout)
        try:
            await self._proofs.require(req.url.origin(), protocol.transport)
        except BaseException:
            protocol.close()
            raise
        return protocol
