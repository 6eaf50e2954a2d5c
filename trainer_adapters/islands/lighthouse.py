"""The islands that one lighthouse of torchft knows: who is alive, and who takes part in a round.

The lighthouse is a process of its own, `torchft_lighthouse`. It holds no state that matters. An island that
cannot reach it trains on alone, and takes part again when it can. Nothing is encrypted or authenticated.
"""

import logging
import os
import secrets
import threading
from datetime import timedelta
from typing import Any, NamedTuple

from contracts.support.addresses import in_url
from contracts.weights import listening_store
from trainer_adapters.islands.links import linked
from trainer_adapters.islands.membership import Meeting
from trainer_adapters.islands.ranks import IslandRanks

log = logging.getLogger(__name__)

CONNECT_S = 5.0
HEARTBEAT_S = 0.5
MISSING = "islands need torchft, which is not installed: pip install 'pipelinerl[islands]'"


class Quorum(NamedTuple):
    """What rank 0 has learnt, and tells the others. round: the newest. sources: of each island, by rank."""

    rank: int
    size: int
    round: int
    name: str  # of this meeting alone
    store: str  # where its groups rendezvous
    sources: list[list[str]]


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
            rounds that this rank keeps. wait_s: for the other islands. timeout_s: for each of their messages.
        """
        self._ranks = ranks
        self._address = address
        self._timeout_s = timeout_s
        sources = ranks.each(source)
        self._rank_0 = None
        if ranks.rank == 0:
            self._rank_0 = _Island(lighthouse, island, address, sources, wait_s, timeout_s)

    def quorum(self, round: int) -> Meeting | None:
        quorum = self._ranks.of_rank_0(self._rank_0 and self._rank_0.quorum(round))
        if quorum is None:
            return None
        rank = self._ranks.rank
        group = None
        if quorum.size > 1:
            place = quorum.rank, quorum.size
            group = linked(self._address, quorum.store, f"{quorum.name}/{rank}", place, self._timeout_s)
        sources = [of_island[rank] for of_island in quorum.sources if rank < len(of_island)]
        return Meeting(quorum.rank, quorum.size, quorum.round, group, sources)

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
        self._life = f"{island}:{secrets.token_hex(8)}"  # so that nobody waits for an earlier life
        self._sources = sources
        self._wait = timedelta(seconds=wait_s)
        self._store = listening_store(address, 0, timeout_s)
        self._at = f"{in_url(address)}:{self._store.port}"
        self._left = threading.Event()
        self._heart = threading.Thread(target=self._beat, name="island-heartbeat", daemon=True)
        self._heart.start()

    def quorum(self, round: int) -> Quorum | None:
        """Waits for the other islands. Returns None if the lighthouse is gone, or they do not come."""
        try:
            answer = _client(self._lighthouse).quorum(
                self._life,
                self._wait,
                address="",
                store_address=self._at,
                step=round,
                world_size=len(self._sources),
                data={"sources": self._sources},
            )
        except (RuntimeError, TimeoutError) as error:
            log.warning("no round with other islands: %s", str(error).splitlines()[0])
            return None
        return self._read(answer)

    def _read(self, answer: Any) -> Quorum:
        members = sorted(answer.participants, key=lambda member: member.replica_id)
        newest = max(member.step for member in members)
        ahead = [m for m in members if m.step == newest and m.replica_id != self._life]
        created = answer.created
        return Quorum(
            rank=[member.replica_id for member in members].index(self._life),
            size=len(members),
            round=newest,
            name=f"round/{answer.quorum_id}/{created.seconds}.{created.nanos}",
            store=members[0].store_address,
            sources=[(member.data or {}).get("sources", []) for member in ahead],
        )

    def _beat(self) -> None:
        client = None
        while not self._left.wait(HEARTBEAT_S):
            try:
                client = client or _client(self._lighthouse)
                client.heartbeat(self._life, timedelta(seconds=CONNECT_S))
            except (RuntimeError, TimeoutError):
                client = None

    def leave(self) -> None:
        self._left.set()
        self._heart.join()


def _client(lighthouse: str) -> Any:
    """Returns a client of the lighthouse. Raises RuntimeError if it cannot be reached."""
    os.environ.setdefault("RUST_LOG", "error")  # torchft logs every call otherwise
    from torchft.coordination import LighthouseClient

    return LighthouseClient(lighthouse, timedelta(seconds=CONNECT_S))
