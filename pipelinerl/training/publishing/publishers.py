"""Makes the publisher that `weights.transport` names. Called by trainer rank 0."""

from collections.abc import Callable, Mapping

import torch

from contracts.records import ServerCondemned
from contracts.weights import WeightManifest
from extensions.stored_weights.trainer.followers import Followers
from extensions.stored_weights.trainer.packer import Packer
from extensions.stored_weights.trainer.relay import RelayPublisher
from extensions.stored_weights.trainer.shared import SharedPublisher
from extensions.stored_weights.trainer.stored import StorePlace, VersionStore
from pipelinerl.config import RunConfig
from pipelinerl.streams.launched_servers import LaunchedServers
from pipelinerl.training.publishing.base import WeightPublisher
from pipelinerl.training.publishing.group import GroupPublisher


def new_publisher(
    config: RunConfig,
    place: StorePlace,
    launched: LaunchedServers,
    token: str | None,
    manifest: WeightManifest,
    record: Callable[[ServerCondemned], object],
    needs: Mapping[str, str],
    address: str,
    buffers: Callable[[], Mapping[str, torch.Tensor]] = dict,
) -> WeightPublisher:
    """Returns the publisher of a run.

    place: where the store is, for transports that have one. record: tells the launcher to end a server.
    needs: capabilities that every server must have, each with the setting that needs it.
    address: this machine's address, by which the servers reach it. buffers: `TrainerWorker.buffers`.
    """
    if config.weights.transport == "group":
        return GroupPublisher(config, launched, token, manifest, record, needs, address)
    store = VersionStore(place, config, manifest, buffers)
    if config.weights.transport == "shared":
        return SharedPublisher(config, store, launched, token, record, needs)
    packer = Packer(store, config.weights.keep)
    sources = [place.origin, *config.weights.relays]
    followers = Followers(
        config, launched, token, store.run, store.public_key, sources, packer.digests, needs, record
    )
    return RelayPublisher(config, store, packer, followers)
