"""The HTTP session that actor, publisher and probe speak to servers with."""

import aiohttp

# Many servers close an idle connection after 5 s; a POST that meets that very moment is lost.
KEEP_ALIVE_S = 2.0


def open_session(token: str | None, timeout_s: float | None = None) -> aiohttp.ClientSession:
    """Any number of connections at once; `timeout_s` is for a whole request."""
    return aiohttp.ClientSession(
        headers={"Authorization": f"Bearer {token}"} if token else {},
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
        timeout=aiohttp.ClientTimeout(total=timeout_s),
    )
