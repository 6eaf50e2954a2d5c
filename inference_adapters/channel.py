"""The interface of weight channels, by which a server gets weights without a weight group.

The option `--weight-channels` names a subclass of `WeightChannels`. `serve` creates it, and `membership`
joins its channels. The wire models are in `contracts.channel`.
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
    """The addresses of a request's connection."""

    host: str  # address of the client
    reached: str  # address of the server at which the request arrived


LOCAL = Caller("127.0.0.1", "127.0.0.1")


class WeightChannel(abc.ABC):
    """One channel of a server. Methods run in the server's event loop and must not block it.

    Call `UpdateLedger.acquire_exclusive` before the engine's `load_weights`, and neither after `close`. Only
    `pull` is required if the channel pulls no version by itself and keeps no resource open.
    """

    request: InitWeightChannelRequest

    async def open(self) -> str | None:
        """Opens the channel, and returns the proof that its request asks for.

        Raises ContractError if that fails. Then `close` is not called, so release all resources first.
        """
        return None

    def begin(self) -> None:  # noqa: B027
        """Starts to pull versions if the request says `follow`. Called after the server has joined."""

    async def close(self, why: str) -> None:  # noqa: B027
        """Closes the channel and ends its tasks. Cancels versions being pulled, with `why` as the reason."""

    def info(self) -> ChannelInfo:
        """Returns the channel's state for `/contract`."""
        asked = self.request
        return ChannelInfo(kind=asked.kind, epoch=asked.epoch, follow=asked.follow)

    @abc.abstractmethod
    async def pull(self, record: UpdateRecord, kv_cache: KvCacheMode) -> None:
        """Fetches version `record.outcome.version` and passes it to the engine, within the record's timeout.

        Calls the engine's `load_weights` with a StoredUpdate and `record.progress`. Raises UpdateError
        (`update_record`) if the version cannot be fetched.
        """


class WeightChannels(abc.ABC):
    """Factory of the channels of a server. A server has one object of this class."""

    @classmethod
    @abc.abstractmethod
    def add_arguments(cls, parser: argparse.ArgumentParser) -> None:
        """Adds the options of these channels to the server's command line."""

    @classmethod
    @abc.abstractmethod
    def of(cls, args: argparse.Namespace) -> Self:
        """Creates the object from the command line.

        Raises OSError or ValueError, with a one-line message, if an option is invalid.
        """

    @abc.abstractmethod
    def capabilities(self, engine: InferenceEngine) -> Sequence[str]:
        """Returns the capabilities that these channels add. May be called before the engine has started."""

    @abc.abstractmethod
    def check(self, request: InitWeightChannelRequest, engine: InferenceEngine, caller: Caller) -> None:
        """Raises ContractError if the channel cannot or must not be joined. Must not have side effects."""

    @abc.abstractmethod
    def channel(
        self, request: InitWeightChannelRequest, engine: InferenceEngine, ledger: UpdateLedger
    ) -> WeightChannel:
        """Returns a channel that is not open yet. It adds versions that it pulls by itself to the ledger."""

    def close(self) -> None:  # noqa: B027
        """Deletes temporary files. Called after all channels are closed."""
