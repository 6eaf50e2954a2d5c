"""The interface behind which weight channels stand: ways other than a group by which a server gets weights.

The command line names the class of channels that a server offers (`--weight-channels`). `serve` makes it, and
`membership` joins its channels. The wire models are in `contracts.channel`.
"""

import abc
import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from contracts.channel import ChannelInfo, InitWeightChannelRequest
from contracts.inference import InferenceEngine
from contracts.limits import KvCacheMode
from inference_adapters.update_ledger import UpdateLedger
from inference_adapters.update_record import UpdateRecord


@dataclass(frozen=True)
class Caller:
    """Who sent a request: the address that it came from, and the one at which it reached the server."""

    host: str
    reached: str


LOCAL = Caller("127.0.0.1", "127.0.0.1")


class WeightChannel(abc.ABC):
    """One channel of a server. Its methods are called in the server's event loop, and do not block it.

    A version is given to the engine after `UpdateLedger.occupy`, and only while the channel is not closed.
    A channel that pulls no version by itself, and holds nothing open, has only to `pull`.
    """

    request: InitWeightChannelRequest  # that it was made for

    async def open(self) -> str | None:
        """Makes the channel usable, and returns the proof that its request asks for.

        Raises ContractError if that is not possible. Nothing is left to be closed then.
        """
        return None

    def begin(self) -> None:  # noqa: B027
        """Begins to pull versions if the request says `follow`. The server has joined the channel."""

    async def close(self, why: str) -> None:  # noqa: B027
        """Ends the channel with all of its tasks. Versions that it pulls are given up, and `why` is told."""

    def info(self) -> ChannelInfo:
        """Returns what `/contract` says of the channel."""
        asked = self.request
        return ChannelInfo(kind=asked.kind, epoch=asked.epoch, follow=asked.follow)

    @abc.abstractmethod
    async def pull(self, record: UpdateRecord, kv_cache: KvCacheMode) -> None:
        """Obtains a requested version and has the engine load it, within the timeout of its record.

        The version is `record.outcome.version`. `load_weights` of the engine gets it as a StoredUpdate, with
        `record.progress`. Raises UpdateError (`update_record`) if the version cannot be obtained.
        """


class WeightChannels(abc.ABC):
    """The channels that a server offers. There is one object of this class in a server."""

    @classmethod
    @abc.abstractmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        """Adds the options of these channels to the server's command line."""

    @classmethod
    @abc.abstractmethod
    def of(cls, args: argparse.Namespace) -> Self:
        """Returns the channels that the command line describes.

        Raises OSError or ValueError, with a message of one line, if it cannot be followed.
        """

    @abc.abstractmethod
    def capabilities(self, engine: InferenceEngine) -> Sequence[str]:
        """Returns the capabilities that these channels add to those of the engine, also before it starts."""

    @abc.abstractmethod
    def check(self, request: InitWeightChannelRequest, engine: InferenceEngine, caller: Caller) -> None:
        """Raises ContractError if the channel must not be joined, or cannot be. Changes nothing."""

    @abc.abstractmethod
    def channel(
        self, request: InitWeightChannelRequest, engine: InferenceEngine, ledger: UpdateLedger
    ) -> WeightChannel:
        """Returns a channel that is not open yet. The ledger gets the versions that it pulls unasked."""

    def close(self) -> None:  # noqa: B027
        """Deletes what is temporary. No channel is open any more."""
