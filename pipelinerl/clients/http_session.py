"""The HTTP session that actor, publisher, probe and preprocessor speak to servers with."""

import aiohttp
from aiohttp.client_proto import ResponseHandler

from pipelinerl.clients.server_proof import ServerProofs

# Many servers close an idle connection after 5 s; a POST that meets that very moment is lost.
KEEP_ALIVE_S = 2.0


def open_session(token: str | None, timeout_s: float | None = None) -> aiohttp.ClientSession:
    """Any number of connections at once; `timeout_s` is for a whole request.

    The token goes only to servers that know it. Answers are not decompressed: a few kilobytes could become
    gigabytes.
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
    """A connector that uses a new connection only after its server has shown that it knows the token.

    The challenge is sent once the connection is open, so the proof is of who listens at that time. Only a
    process that accepts a connection and leaves its port to a real server at once could be missed. A server
    that dies takes its connections along. A process that takes its port is asked before it is sent anything.
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
