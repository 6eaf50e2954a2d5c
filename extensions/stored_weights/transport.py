"""The weight transports `relay` and `shared`, named by `conf/weights/relay.yaml` and `shared.yaml`."""

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import aiohttp
from pydantic import AfterValidator, Field

from contracts.channel import MAX_SOURCES
from contracts.limits import LONGEST_S
from contracts.support.locations import Location
from extensions.stored_weights.actor.version_watch import VersionWatch
from extensions.stored_weights.launcher.shared_store import (
    SHARED_MEMORY,
    check_directory,
    made_store,
    store_name,
)
from extensions.stored_weights.store_location import ORIGIN_VARIABLE, STORE_VARIABLE, StoreLocation
from pipelinerl.config import Bool, Int, Section, Text
from pipelinerl.errors import PlanError
from pipelinerl.paths import OWNER_ALONE
from pipelinerl.weight_transport import LaunchContext, ServerGate, Service, WeightTransport

if TYPE_CHECKING:  # imports torch, which the launcher does not need
    from extensions.stored_weights.trainer.relay import RelayPublisher
    from extensions.stored_weights.trainer.shared import SharedPublisher
    from pipelinerl.training.publishing.base import PublisherContext

CHANNELS = "extensions.stored_weights.channels.StoredChannels"
ORIGIN = "origin"
BEING_WRITTEN = 2  # versions
PULLED = 3  # versions at each server
URL_CHARACTERS = re.compile(r"[\x21-\x7e]{1,2048}")


def _relay(url: str) -> str:
    """Returns the URL of a relay. Raises ValueError if servers would refuse it as a source."""
    if any(character in url for character in "@?#%\\"):
        raise ValueError("the URL of a relay has no user, password, query, fragment or escape")
    try:
        if not URL_CHARACTERS.fullmatch(url):
            raise ValueError("a URL has up to 2048 ASCII characters and no space")
        if not Location.of(url).port:
            raise ValueError("a relay has a port from 1 on")
    except ValueError as error:
        why = str(error).removeprefix(f"{url}: ")
        raise ValueError(f"{url[:100]!r} is no http:// or https:// URL with a host: {why}") from None
    return url.rstrip("/")


class Relay(WeightTransport):
    """A store that servers pull from over HTTP, each at its own pace (`weights=relay`)."""

    class Options(Section):
        """The keys of `weights` with `weights=relay`."""

        directory: Text | None = Field(None, description="The store's directory; null = RUN_DIR/weights.")
        deltas: Bool = Field(False, description="Also write deltas; needs weights.dtype of 16 bits.")
        relays: list[Annotated[str, AfterValidator(_relay)]] = Field(
            [],
            max_length=MAX_SOURCES - 1,  # and the origin
            description="URLs of HTTP caches of the store's origin.",
        )
        origin_port: Int = Field(0, ge=0, le=65535, description="Port of the store's origin; 0 = a free one.")
        poll_s: float = Field(1.0, ge=0.01, lt=LONGEST_S, description="Interval at which servers poll.")
        keep: Int = Field(3, ge=1, description="Versions that the store keeps.")
        max_behind: Int | None = Field(
            None,
            ge=0,
            description="Largest lag, in versions, of a server that gets requests; null = max_lag.",
        )

    options: Options
    pulled: ClassVar[bool] = True

    @property
    def most_behind(self) -> int | None:
        """The largest lag, in versions, of a server that gets requests; None if there is no limit."""
        limit = self.options.max_behind
        return self.config.lag_limit if limit is None else limit

    def check(self) -> None:
        if self.config.schedule == "async":
            raise PlanError(
                "weights=relay with schedule=async: servers change weights by themselves, not between "
                "requests; set schedule=pipeline, or weights=group"
            )
        if self.options.deltas and self.config.weights.dtype == "float32":
            raise PlanError(
                "weights.deltas=true needs weights.dtype=bfloat16 or float16: in float32 nearly every value "
                "changes at every step"
            )
        limit = self.config.lag_limit
        behind = self.options.max_behind
        if limit is not None and behind is not None and behind > limit:
            raise PlanError(
                f"weights.max_behind={behind} is more than max_lag={limit}: what such servers sample is "
                "stale at once"
            )

    def needed_capabilities(self) -> dict[str, str]:
        needs = {"relay": "weights=relay needs servers that load stored weights"}
        if self.options.deltas:
            needs["delta"] = "weights.deltas=true needs servers that apply deltas"
        return needs

    def disk(self, size: int) -> int:
        """Counts what is kept and being written, and the servers' copies. Other versions are short-lived."""
        stored = 0 if self.options.directory else self.options.keep + BEING_WRITTEN
        return size * (stored + PULLED * self.config.world.servers)

    def plan_notes(self) -> Iterator[str]:
        yield "ports: of the origin in its command"
        if self.most_behind == 0:
            yield (
                "expected waits: after every step no server gets requests until it has pulled the new "
                "weights, because it may not be behind (weights=relay with max_lag=0 or "
                "weights.max_behind=0); weights=group and weights=shared bring them sooner"
            )

    def services(self) -> Sequence[Service]:
        return (Service(ORIGIN, self._origin, self.options.origin_port, "weights.origin_port"),)

    def _origin(self, launch: LaunchContext, host: str, port: int) -> tuple[str, ...]:
        module = (sys.executable, "-m", "extensions.stored_weights.store.origin", str(self._store(launch)))
        return (*module, "--host", host, "--port", str(port))

    def server_options(self, launch: LaunchContext, server: str) -> list[str]:
        sources = [launch.urls[ORIGIN], *self.options.relays]
        own = str(_pulled(launch) / server)
        return [*_channels(sources), "--weight-directory", own]

    def trainer_environment(self, launch: LaunchContext) -> dict[str, str]:
        return {STORE_VARIABLE: str(self._store(launch)), ORIGIN_VARIABLE: launch.urls[ORIGIN]}

    @contextmanager
    def opened(self, launch: LaunchContext) -> Iterator[None]:
        """Creates the directory of the store, which stays. Removes the servers' pulled weights at the end."""
        store = self._store(launch)
        try:
            store.mkdir(mode=OWNER_ALONE, parents=True, exist_ok=True)
        except OSError as error:
            raise PlanError(
                f"weights.directory={store} cannot be made ({error.strerror}); set it to another, or leave "
                "it out"
            ) from error
        try:
            yield
        finally:
            shutil.rmtree(_pulled(launch), ignore_errors=True)

    def publisher(self, context: "PublisherContext") -> "RelayPublisher":
        from extensions.stored_weights.trainer.relay import relay_publisher

        place = StoreLocation.from_environment(context.run_dir, os.environ)
        return relay_publisher(self.config, self.options, context, place)

    def gate(self, session: aiohttp.ClientSession, on_change: Callable[[], None]) -> ServerGate:
        return VersionWatch(session, self.most_behind, on_change)

    def _store(self, launch: LaunchContext) -> Path:
        given = self.options.directory
        return Path(given).resolve() if given else launch.run_dir / "weights"


class Shared(WeightTransport):
    """A directory that the servers share with the trainer (`weights=shared`)."""

    class Options(Section):
        """The keys of `weights` with `weights=shared`."""

        directory: Text | None = Field(
            None,
            description="Parent directory of the store; null = /dev/shm. The store is removed after the run.",
        )

    options: Options
    puts_to_sleep: ClassVar[bool] = True

    def check(self) -> None:
        from pipelinerl.launcher.executors.base import executor_class  # only the launcher calls this

        if executor_class(self.config).spans_nodes and self.options.directory is None:
            raise PlanError(
                "weights=shared with executor=ray: servers on other nodes do not see /dev/shm of the "
                "trainer's; set weights.directory to one that all nodes share, or weights=relay"
            )
        check_directory(str(self._parent))

    def needed_capabilities(self) -> dict[str, str]:
        return {"shared": "weights=shared needs servers that load stored weights"}

    def shared_memory(self, size: int) -> int:
        return 2 * size if self._parent.is_relative_to(SHARED_MEMORY) else 0  # a version, and the next one

    def server_options(self, launch: LaunchContext, server: str) -> list[str]:
        return _channels([f"file://{self._store(launch)}"])

    def trainer_environment(self, launch: LaunchContext) -> dict[str, str]:
        return {STORE_VARIABLE: str(self._store(launch))}

    def opened(self, launch: LaunchContext) -> AbstractContextManager[None]:
        return made_store(self._store(launch))

    def publisher(self, context: "PublisherContext") -> "SharedPublisher":
        from extensions.stored_weights.trainer.shared import SharedPublisher

        return SharedPublisher(
            self.config, context, StoreLocation.from_environment(context.run_dir, os.environ)
        )

    @property
    def _parent(self) -> Path:
        return Path(self.options.directory or SHARED_MEMORY).resolve()

    def _store(self, launch: LaunchContext) -> Path:
        return self._parent / store_name(launch.run_dir, launch.token)


def _channels(sources: Sequence[str]) -> list[str]:
    return ["--weight-channels", CHANNELS, "--weight-sources", *sources]


def _pulled(launch: LaunchContext) -> Path:
    return launch.run_dir / "pulled"
