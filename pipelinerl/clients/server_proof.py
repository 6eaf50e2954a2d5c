"""Requires a server to prove that it knows the token, before the token is sent to it.

A server of version 1 of the contract cannot prove it. It is trusted if it runs on this machine under the same
user, whose processes may know the token anyway.
"""

import asyncio
import ipaddress
import json
import logging
import os
import struct
from pathlib import Path

import aiohttp
from yarl import URL

from contracts.challenge import address_of, is_proof, new_challenge
from contracts.inference import Health
from pipelinerl.clients.answer_bodies import body_of

log = logging.getLogger(__name__)
ANSWER_TIMEOUT_S = 10.0
LONGEST_ANSWER = 2**16
TABLES = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]
LISTENING = "0A"  # <net/tcp_states.h>


class UnprovenServerError(aiohttp.ClientConnectionError):
    """The server did not prove that it knows the token. Only the challenge was sent to it."""


class ServerProofs:
    """The challenges to servers of one HTTP session."""

    def __init__(self, token: str):
        self._token = token
        self._servers: dict[tuple[URL, str], _Asked] = {}
        self._logged: set[str] = set()

    async def require(self, origin: URL, connection: asyncio.Transport) -> None:
        """Waits until the server has answered a challenge sent after this call.

        Raises UnprovenServerError, or aiohttp's error if there is no answer.
        """
        host, port = connection.get_extra_info("peername")[:2]
        here = connection.get_extra_info("sockname")[0] == host
        peer = address_of(host, port)
        asked = self._servers.setdefault((origin, peer), _Asked())
        try:
            await asked.once_more(lambda: self._ask(origin, peer, here))
        except UnprovenServerError as error:
            if str(error) not in self._logged:  # once, not for each request
                self._logged.add(str(error))
                log.error("%s", error)
            raise

    async def _ask(self, origin: URL, peer: str, here: bool) -> None:
        challenge = new_challenge()
        health = await _health(origin, peer, challenge)
        if health.proof is None:
            if here and is_own_listener(peer):
                return
            raise UnprovenServerError(
                f"{origin} does not show that it knows the token, so it was not sent: start a server that "
                "keeps version 2 of the contract with PIPELINERL_TOKEN, or run one of version 1 on this "
                "machine under your own user"
            )
        if not is_proof(health.proof, self._token, challenge, health.address or ""):
            raise UnprovenServerError(
                f"{origin} does not know the token, so it was not sent: give the server the run's "
                "PIPELINERL_TOKEN, or see whose process listens there"
            )
        if origin.scheme == "http" and health.address != peer:  # TLS authenticates the server
            raise UnprovenServerError(
                f"{origin} is {peer}, and its proof is of the server at {health.address}, so the token was "
                "not sent: give the server's own address, or reach it through https"
            )


class _Asked:
    """The challenges to one server, one at a time. Each covers all connections opened before it was sent."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._next: asyncio.Task[None] | None = None

    async def once_more(self, ask) -> None:
        if self._next is None:
            self._next = asyncio.create_task(self._in_turn(ask))
            self._next.add_done_callback(_retrieve)
        await asyncio.shield(self._next)  # other connections wait for the task too

    async def _in_turn(self, ask) -> None:
        async with self._turn:
            self._next = None
            await ask()


def _retrieve(task: asyncio.Task[None]) -> None:
    """Retrieves the task's exception, so that asyncio does not log it if no caller waits."""
    if not task.cancelled():
        task.exception()


async def _health(origin: URL, peer: str, challenge: str) -> Health:
    """Returns the answer to `/health`, fetched over a new connection."""
    # A name may have several addresses, so the connection is to the peer's address.
    where = URL(f"http://{peer}") if origin.scheme == "http" else origin
    timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)
    async with (
        aiohttp.ClientSession(timeout=timeout, headers={"Host": origin.authority}) as http,
        http.get(where / "health" % {"challenge": challenge}, allow_redirects=False) as answer,
    ):
        try:
            body = json.loads(await body_of(answer, LONGEST_ANSWER))
            if answer.status == 503 and isinstance(body, dict) and "error" in body:
                raise aiohttp.ClientConnectionError(f"{origin} took no question: {body['error']}")
            return Health.model_validate(body)
        except (ValueError, RecursionError):  # the server does not understand the challenge
            return Health(status="unknown")


def is_own_listener(address: str) -> bool:
    """Returns True if sockets listen at `address` (`host:port`), and all belong to this process's user."""
    host, _, port = address.rpartition(":")
    wanted = ipaddress.ip_address(host.strip("[]"))
    owners = {
        uid for found, uid in _listeners(int(port)) if found == wanted or found.is_unspecified
    }  # a socket at 0.0.0.0 or :: listens at every address
    return owners == {os.getuid()}


def _listeners(port: int) -> list[tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, int]]:
    """Returns the address and the user of each socket that listens at `port`."""
    rows = [row.split() for table in TABLES if table.exists() for row in table.read_text().splitlines()[1:]]
    return [
        (_address(row[1].partition(":")[0]), int(row[7]))
        for row in rows
        if row[3] == LISTENING and int(row[1].partition(":")[2], 16) == port
    ]


def _address(digits: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Parses an address, which the kernel prints as 32-bit words in the machine's byte order."""
    words = [int(digits[i : i + 8], 16) for i in range(0, len(digits), 8)]
    address = ipaddress.ip_address(struct.pack(f"={len(words)}I", *words))
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
