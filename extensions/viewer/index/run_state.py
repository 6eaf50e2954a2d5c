"""The state of a run according to its events, which `EventFeed` reads. Pure."""

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass

from contracts.records import (
    ActorStopped,
    CheckpointSaved,
    Evaluated,
    Record,
    Resumed,
    ServerJoined,
    ServerLeft,
    Settled,
    Started,
    StepClosed,
    TrainingDone,
    WeightsPublished,
)
from pipelinerl.report.accounting import GroupAccounts
from pipelinerl.streams.events import results_left

HISTOGRAMS = 100  # steps whose lags are kept


@dataclass
class Server:
    """A server of the run. why_left: None while it is in the run."""

    joined: ServerJoined
    why_left: str | None = None
    version: int | None = None  # last version published to it
    paused_s: float | None = None  # pause of its last update
    longest_pause_s: float | None = None
    transfer_s: float | None = None


class RunState:
    """The state of a run after the observed events, some of which a resumption undoes."""

    def __init__(self) -> None:
        self.accounts = GroupAccounts()
        self.published: dict[int, WeightsPublished] = {}
        self.evaluations: list[Evaluated] = []
        self.resumptions: list[Resumed] = []
        self.checkpoints: list[CheckpointSaved] = []
        self.servers: list[Server] = []
        self.steps: deque[StepClosed] = deque(maxlen=HISTOGRAMS)
        self.began_at: float | None = None  # start of the first server, in unix seconds
        self.step = 0  # version of the last step
        self.is_done = False
        self.dropped: Counter[str] = Counter()  # dropped groups, by reason
        self._changed: set[int] = set()  # groups whose outcome may have changed since `take_changed`

    def observe(self, event: Record) -> None:
        """Updates the state with the next event: those of an incarnation in any order, then a `Resumed`."""
        match event:
            case Started() | ActorStopped():
                self.accounts.observe(event)
            case Settled():
                self._settle(event)
            case StepClosed():
                self.steps.append(event)
                self.step = event.version
            case WeightsPublished():
                self._publish(event)
            case Evaluated():
                self.evaluations.append(event)
            case CheckpointSaved():
                self.checkpoints.append(event)
            case TrainingDone():
                self.is_done = True
            case ServerJoined():
                self._join(event)
                self.began_at = self.began_at or event.at or None
            case ServerLeft():
                self._leave(event)
            case Resumed():
                self._resume(event)

    def take_changed(self) -> set[int]:
        """Returns the groups whose outcome may have changed since the last call."""
        changed = self._changed
        self._changed = set()
        return changed

    def outcome_of(self, group: int) -> str | None:
        """Returns `trained` or `dropped: <reason>`, or None while the group is in flight."""
        settlement = self.accounts.settlement_of(group)
        if settlement is None:
            return None
        return f"dropped: {settlement.reason}" if settlement.reason else "trained"

    @property
    def live_version(self) -> int | None:
        return next(reversed(self.published), None)

    @property
    def alive_servers(self) -> list[Server]:
        return [server for server in self.servers if server.why_left is None]

    def _settle(self, event: Settled) -> None:
        self.accounts.observe(event)
        self._changed.update(event.group_ids)
        if event.reason:
            self.dropped[event.reason] += len(event.group_ids)

    def _drop_reasons(self) -> Iterator[str]:
        for group in self.accounts.started:
            settlement = self.accounts.settlement_of(group)
            if settlement and settlement.reason:
                yield str(settlement.reason)

    def _publish(self, event: WeightsPublished) -> None:
        self.published.pop(event.version, None)  # a republished version becomes the newest
        self.published[event.version] = event
        updates = {update.url: update for update in event.updates}
        served = [event.version] * len(event.servers) if event.live is None else event.live
        live = dict(zip(event.servers, served, strict=False))
        for server in self.alive_servers:
            if (version := live.get(server.joined.url, -1)) >= 0:
                server.version = version
            if update := updates.get(server.joined.url):
                server.paused_s = update.paused_s
                server.longest_pause_s = max(server.longest_pause_s or 0.0, update.paused_s)
                server.transfer_s = update.transfer_s

    def _join(self, event: ServerJoined) -> None:
        for server in self.alive_servers:
            if event.url == server.joined.url or event.name == server.joined.name:
                server.why_left = "replaced"
        self.servers.append(Server(event))

    def _leave(self, event: ServerLeft) -> None:
        for server in self.alive_servers:
            if server.joined.url == event.url:
                server.why_left = event.why

    def _resume(self, event: Resumed) -> None:
        self.accounts.observe(event)
        self._changed.update(self.accounts.started)
        self.dropped = Counter(self._drop_reasons())
        self.resumptions.append(event)
        for server in self.alive_servers:
            server.why_left = "the run stopped"
        self.evaluations = results_left(self.evaluations, event.version)
        self.published = {v: published for v, published in self.published.items() if v <= event.version}
        self.checkpoints = [saved for saved in self.checkpoints if saved.version <= event.version]
        kept = [closed for closed in self.steps if closed.version <= event.version]
        self.steps = deque(kept, maxlen=HISTOGRAMS)
        self.step = event.version
        self.is_done = False
