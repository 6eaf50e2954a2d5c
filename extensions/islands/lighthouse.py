"""The membership of islands by a lighthouse of torchft, which knows the live islands and forms rounds.

The lighthouse is a separate process, `torchft_lighthouse`, without persistent state. An island that cannot
reach it continues alone, and joins again later. Nothing is encrypted or authenticated.
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
from extensions.islands.links import linked
from extensions.islands.membership import Meeting
from extensions.islands.ranks import IslandRanks

log = logging.getLogger(__name__)

CONNECT_S = 5.0
TOO_LATE = "Timeout expired"  # in torchft's error
STORE = re.compile(r".+:\d{1,5}")  # HOST:PORT of a rendezvous store
HEARTBEAT_S = 0.5
MISSING = "islands need torchft, which is not installed: pip install 'pipelinerl[islands]'"


class Quorum(NamedTuple):
    """The lighthouse's answer, which rank 0 sends to the other ranks."""

    rank: int
    size: int
    round: int  # the newest round
    name: str  # unique name of this meeting
    store: str  # address of the rendezvous store
    sources: list[list[str]]  # [other island at this round][rank]
    lineages: list[list[str]]  # [island at this round][rank]


class LighthouseMembership:
    """The membership of one rank of an island. All ranks call the same functions in the same order."""

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
        """Starts the heartbeat to the lighthouse on rank 0.

        lighthouse: URL of the lighthouse. address: address of this machine for the other islands.
        source: URL of the rounds that this rank keeps, or "".
        wait_s: longest wait for the other islands. timeout_s: longest time to connect them.

        Raises CannotContinueError, on every rank, if rank 0 cannot listen at the address.
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
        """Asks the lighthouse on rank 0, and forms this rank's group. Returns None if that fails."""
        lineages = self._ranks.each(lineage)
        quorum = self._ranks.of_rank_0(self._rank_0 and self._rank_0.quorum(round, lineages))
        if quorum is None:
            return None
        rank = self._ranks.rank
        group = None
        if quorum.size > 1:
            place = quorum.rank, quorum.size
            group = linked(self._address, quorum.store, f"{quorum.name}/{rank}", place, self._timeout_s)
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
    """The connection of this island to the lighthouse, on rank 0."""

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
        self._at = f"{in_url(address)}:{self._store.port}"
        self._client: Any = None
        self._rename()
        self._send_heartbeat()
        self._left = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="island-heartbeat", daemon=True)
        self._heart.start()

    def _rename(self) -> None:
        """Takes a new name, because the lighthouse remembers requests of a name until its heartbeat stops."""
        self._name = f"{self._island}:{secrets.token_hex(8)}"

    def quorum(self, round: int, lineages: list[str]) -> Quorum | None:
        """Waits for the other islands. Returns None if they, or the lighthouse, do not answer."""
        log.info("round %d: waiting for other islands, %g s at most", round, self._wait.total_seconds())
        try:
            answer = _client(self._lighthouse).quorum(
                self._name,
                self._wait,
                address="",
                store_address=self._at,
                step=round,
                world_size=len(self._sources),
                data={"sources": self._sources, "lineages": lineages},
            )
            return self._read(answer)
        except Exception as error:  # of any kind, because this island can continue alone
            log.warning("no round with other islands: %s", self._reason(error))
            self._rename()
            self._send_heartbeat()
            return None

    def _reason(self, error: Exception) -> str:
        reason = first_line(error)
        return f"they did not come in {self._wait.total_seconds():g} s" if TOO_LATE in reason else reason

    def _read(self, answer: Any) -> Quorum:
        """Returns the parsed answer. Raises any error for an unexpected one."""
        members = sorted(filter(_is_island, answer.participants), key=lambda member: member.replica_id)
        newest = max(member.step for member in members)
        at_newest = [member for member in members if member.step == newest]
        created = answer.created
        return Quorum(
            rank=[member.replica_id for member in members].index(self._name),
            size=len(members),
            round=newest,
            name=f"round/{answer.quorum_id}/{created.seconds}.{created.nanos}",
            store=members[0].store_address,
            sources=[m.data["sources"] for m in at_newest if m.replica_id != self._name],
            lineages=[m.data["lineages"] for m in at_newest],
        )

    def _beat(self) -> None:
        while not self._left.wait(HEARTBEAT_S):
            self._send_heartbeat()

    def _send_heartbeat(self) -> None:
        try:
            self._client = self._client or _client(self._lighthouse)
            self._client.heartbeat(self._name, timedelta(seconds=CONNECT_S))
        except Exception:  # the lighthouse may answer the next time
            self._client = None

    def leave(self) -> None:
        self._left.set()
        self._heart.join()


def _is_island(member: Any) -> bool:
    """Returns True if a participant has the data of an island. Others are ignored on all islands."""
    data = member.data if isinstance(member.data, dict) else {}
    return bool(STORE.fullmatch(member.store_address)) and all(
        isinstance(values, list) and all(isinstance(value, str) for value in values)
        for values in (data.get("sources"), data.get("lineages"))
    )


def _client(lighthouse: str) -> Any:
    """Returns a client of the lighthouse. Raises RuntimeError if it cannot be reached."""
    os.environ.setdefault("RUST_LOG", "error")  # torchft logs every call otherwise
    from torchft.coordination import LighthouseClient

    return LighthouseClient(lighthouse, timedelta(seconds=CONNECT_S))
