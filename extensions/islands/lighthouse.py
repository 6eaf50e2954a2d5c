"""The islands that one lighthouse of torchft knows: who is alive, and who takes part in a round.

The lighthouse is a process of its own, `torchft_lighthouse`. It holds no state that matters. An island that
cannot reach it trains on alone, and takes part again when it can. Nothing is encrypted or authenticated.
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
STORE = re.compile(r".+:\d{1,5}")  # where groups rendezvous: HOST:PORT
HEARTBEAT_S = 0.5
MISSING = "islands need torchft, which is not installed: pip install 'pipelinerl[islands]'"


class Quorum(NamedTuple):
    """What rank 0 has learnt, and tells the others. sources, lineages: of islands, by rank."""

    rank: int
    size: int
    round: int  # the newest
    name: str  # of this meeting alone
    store: str  # where its groups rendezvous
    sources: list[list[str]]  # of the others that are at this round
    lineages: list[list[str]]  # of all that are


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
        """Rank 0 begins to tell the lighthouse that this island is alive.

        lighthouse: its URL. address: of this machine, where other islands reach it. source: the URL of the
            rounds that this rank keeps, or "". wait_s: for the other islands. timeout_s: to find and to
            connect them. Raises CannotContinueError, on every rank, if rank 0 cannot listen at the address.
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
        """Asks on rank 0, and forms the group of this rank. Returns None, on every rank, without others."""
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
    """This island, as the lighthouse knows it."""

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
        self._begin_life()
        self._say_alive()
        self._left = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="island-heartbeat", daemon=True)
        self._heart.start()

    def _begin_life(self) -> None:
        """Takes a new name. The lighthouse keeps what was asked under a name until that is silent."""
        self._life = f"{self._island}:{secrets.token_hex(8)}"

    def quorum(self, round: int, lineages: list[str]) -> Quorum | None:
        """Waits for the other islands. Returns None if the lighthouse is gone, or they do not come."""
        log.info("round %d: waiting for other islands, %g s at most", round, self._wait.total_seconds())
        try:
            answer = _client(self._lighthouse).quorum(
                self._life,
                self._wait,
                address="",
                store_address=self._at,
                step=round,
                world_size=len(self._sources),
                data={"sources": self._sources, "lineages": lineages},
            )
            return self._read(answer)
        except Exception as error:  # whatever the lighthouse and the others say, this island trains on
            log.warning("no round with other islands: %s", self._reason(error))
            self._begin_life()
            self._say_alive()
            return None

    def _reason(self, error: Exception) -> str:
        reason = first_line(error)
        return f"they did not come in {self._wait.total_seconds():g} s" if TOO_LATE in reason else reason

    def _read(self, answer: Any) -> Quorum:
        """Raises an error for an answer that no lighthouse of islands gives."""
        members = sorted(filter(_is_island, answer.participants), key=lambda member: member.replica_id)
        newest = max(member.step for member in members)
        at_newest = [member for member in members if member.step == newest]
        created = answer.created
        return Quorum(
            rank=[member.replica_id for member in members].index(self._life),
            size=len(members),
            round=newest,
            name=f"round/{answer.quorum_id}/{created.seconds}.{created.nanos}",
            store=members[0].store_address,
            sources=[m.data["sources"] for m in at_newest if m.replica_id != self._life],
            lineages=[m.data["lineages"] for m in at_newest],
        )

    def _beat(self) -> None:
        while not self._left.wait(HEARTBEAT_S):
            self._say_alive()

    def _say_alive(self) -> None:
        try:
            self._client = self._client or _client(self._lighthouse)
            self._client.heartbeat(self._life, timedelta(seconds=CONNECT_S))
        except Exception:  # the lighthouse may be back the next time
            self._client = None

    def leave(self) -> None:
        self._left.set()
        self._heart.join()


def _is_island(member: Any) -> bool:
    """Returns whether a participant says what an island says of itself. All islands leave out the others."""
    said = member.data if isinstance(member.data, dict) else {}
    return bool(STORE.fullmatch(member.store_address)) and all(
        isinstance(values, list) and all(isinstance(value, str) for value in values)
        for values in (said.get("sources"), said.get("lineages"))
    )


def _client(lighthouse: str) -> Any:
    """Returns a client of the lighthouse. Raises RuntimeError if it cannot be reached."""
    os.environ.setdefault("RUST_LOG", "error")  # torchft logs every call otherwise
    from torchft.coordination import LighthouseClient

    return LighthouseClient(lighthouse, timedelta(seconds=CONNECT_S))
