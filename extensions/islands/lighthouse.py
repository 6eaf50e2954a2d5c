"""Forms rounds through a lighthouse of torchft, which tracks the living islands.

The lighthouse is a separate process, `torchft_lighthouse`, and may be restarted at any time. An island that
cannot reach it continues alone and tries again in the next round. Nothing is encrypted or authenticated.
"""

import logging
import os
import re
import secrets
import threading
from collections import Counter
from datetime import timedelta
from typing import Any, NamedTuple

from contracts.errors import CannotContinueError
from contracts.support.addresses import in_url
from contracts.support.messages import first_line
from contracts.weights import listening_store
from extensions.islands.links import connected_group
from extensions.islands.membership import Meeting
from extensions.islands.ranks import IslandRanks

log = logging.getLogger(__name__)

CONNECT_S = 5.0
TOO_LATE = "Timeout expired"  # part of torchft's error message
STORE = re.compile(r".+:\d{1,5}")  # HOST:PORT
HEARTBEAT_S = 0.5
MISSING = "islands need torchft, which is not installed: pip install 'pipelinerl[islands]'"


class Quorum(NamedTuple):
    """The lighthouse's answer, which rank 0 broadcasts to the other ranks of its island."""

    rank: int  # rank of this island
    size: int  # number of islands
    round: int  # newest round of an island
    name: str  # unique name of the meeting
    store: str  # HOST:PORT of the rendezvous store
    sources: list[list[str]]  # [island][rank]: URLs of kept rounds, of other islands at `round`
    lineages: list[list[str]]  # [island][rank]: lineages, of all islands at `round`


class LighthouseMembership:
    """The Membership of one rank of an island. All ranks must call the same methods in the same order."""

    def __init__(
        self,
        ranks: IslandRanks,
        lighthouse: str,
        island: str,
        address: str,
        source: str,
        wait_s: float,
        timeout_s: float,
    ):
        """Starts to send heartbeats to the lighthouse, on rank 0.

        source: URL of the rounds that this rank keeps, or "". The other arguments are options of
            DiLoCoTrainer. Raises CannotContinueError, on every rank, if rank 0 cannot listen at the address.
        """
        self._ranks = ranks
        self._address = address
        self._timeout_s = timeout_s
        sources = ranks.each(source)
        self._rank_0: _Island | None = None
        error = None
        if ranks.rank == 0:
            try:
                self._rank_0 = _Island(lighthouse, island, address, sources, wait_s, timeout_s)
            except (OSError, RuntimeError) as caught:
                error = first_line(caught)
        if why := ranks.of_rank_0(error):
            raise CannotContinueError(f"trainer.address={address} must be an address of this machine: {why}")

    def quorum(self, round: int, lineage: str) -> Meeting | None:
        """Asks the lighthouse, on rank 0, and connects this rank to the same rank of the other islands."""
        lineages = self._ranks.each(lineage)
        quorum = self._ranks.of_rank_0(self._rank_0 and self._rank_0.quorum(round, lineages))
        if quorum is None:
            return None
        rank = self._ranks.rank
        group = None
        if quorum.size > 1:
            rank_and_size = quorum.rank, quorum.size
            group = connected_group(
                self._address, quorum.store, f"{quorum.name}/{rank}", rank_and_size, self._timeout_s
            )
        sources = [of_island[rank] for of_island in quorum.sources if rank < len(of_island)]
        newest = Counter(of_island[rank] for of_island in quorum.lineages if rank < len(of_island))
        usual = newest.most_common(1)[0][0] if newest else None
        return Meeting(quorum.rank, quorum.size, quorum.round, group, [s for s in sources if s], usual)

    def commit(self, ok: bool) -> bool:
        return self._ranks.all(ok)

    def leave(self) -> None:
        if self._rank_0:
            self._rank_0.leave()


class _Island:
    """The lighthouse's client, on rank 0 of an island."""

    def __init__(
        self,
        lighthouse: str,
        island: str,
        address: str,
        sources: list[str],
        wait_s: float,
        timeout_s: float,
    ):
        self._lighthouse = lighthouse
        self._island = island
        self._sources = sources
        self._wait = timedelta(seconds=wait_s)
        self._store = listening_store(address, 0, timeout_s)
        self._store_address = f"{in_url(address)}:{self._store.port}"
        self._client: Any = None
        self._renew_id()
        self._send_heartbeat()
        self._left = threading.Event()
        self._heartbeats = threading.Thread(
            target=self._send_heartbeats, name="island-heartbeat", daemon=True
        )
        self._heartbeats.start()

    def _renew_id(self) -> None:
        """Takes a new id, because the lighthouse keeps the requests of an id while it sends heartbeats."""
        self._replica_id = f"{self._island}:{secrets.token_hex(8)}"

    def quorum(self, round: int, lineages: list[str]) -> Quorum | None:
        """Waits for the other islands. Returns None if the lighthouse does not answer or none arrives."""
        log.info("round %d: waiting for other islands, %g s at most", round, self._wait.total_seconds())
        try:
            answer = _client(self._lighthouse).quorum(
                self._replica_id,
                self._wait,
                address="",
                store_address=self._store_address,
                step=round,
                world_size=len(self._sources),
                data={"sources": self._sources, "lineages": lineages},
            )
            return self._read(answer)
        except Exception as error:  # a wrong answer must not end this island's training
            log.warning("no round with other islands: %s", self._reason(error))
            self._renew_id()
            self._send_heartbeat()
            return None

    def _reason(self, error: Exception) -> str:
        reason = first_line(error)
        return f"they did not come in {self._wait.total_seconds():g} s" if TOO_LATE in reason else reason

    def _read(self, answer: Any) -> Quorum:
        """Parses the lighthouse's answer. Raises errors of several types if it is malformed."""
        members = sorted(filter(_is_island, answer.participants), key=lambda member: member.replica_id)
        newest = max(member.step for member in members)
        at_newest = [member for member in members if member.step == newest]
        created = answer.created
        return Quorum(
            rank=[member.replica_id for member in members].index(self._replica_id),
            size=len(members),
            round=newest,
            name=f"round/{answer.quorum_id}/{created.seconds}.{created.nanos}",
            store=members[0].store_address,
            sources=[m.data["sources"] for m in at_newest if m.replica_id != self._replica_id],
            lineages=[m.data["lineages"] for m in at_newest],
        )

    def _send_heartbeats(self) -> None:
        while not self._left.wait(HEARTBEAT_S):
            self._send_heartbeat()

    def _send_heartbeat(self) -> None:
        try:
            self._client = self._client or _client(self._lighthouse)
            self._client.heartbeat(self._replica_id, timedelta(seconds=CONNECT_S))
        except Exception:  # the lighthouse may be reachable again at the next heartbeat
            self._client = None

    def leave(self) -> None:
        self._left.set()
        self._heartbeats.join()


def _is_island(member: Any) -> bool:
    """Returns True if a participant's record is that of an island. All islands ignore other participants."""
    data = member.data if isinstance(member.data, dict) else {}
    return bool(STORE.fullmatch(member.store_address)) and all(
        isinstance(values, list) and all(isinstance(value, str) for value in values)
        for values in (data.get("sources"), data.get("lineages"))
    )


def _client(lighthouse: str) -> Any:
    os.environ.setdefault("RUST_LOG", "error")  # torchft logs every call otherwise
    from torchft.coordination import LighthouseClient

    return LighthouseClient(lighthouse, timedelta(seconds=CONNECT_S))
