"""Sends new weights to the reference server, on trainer rank 0.

The weights are stored in a file next to the checkpoints, for a renewal, a restart of the server, and a
resumption. Each update forms a weight group of trainer and server.
"""

import logging
import secrets
import time
from collections.abc import Callable, Iterator

import torch

from contracts.bucket_packer import BucketPacker
from contracts.inference import ContractInfo, WeightUpdateRequest
from contracts.support.files import replaced_atomically
from contracts.weights import PeerLostError, WeightManifest, send_weights, torch_dtype
from pipelinerl.clients.server_control import ServerControl
from pipelinerl.clients.server_registry import Joining
from pipelinerl.config import RunConfig
from pipelinerl.errors import GaveUpError
from pipelinerl.training.bucket_size import usual_bucket_bytes
from pipelinerl.training.checkpoints import Checkpoints
from pipelinerl.training.membership.candidates import OUTSIDER_TIMEOUT_S, is_hopeless
from pipelinerl.training.membership.servers import Servers
from pipelinerl.training.membership.strikes import MOST_FAILURES
from pipelinerl.training.membership.weight_groups import WeightGroups
from pipelinerl.training.update_times import broken_end_s, rendezvous_s

log = logging.getLogger(__name__)
POLL_EVERY_S = 2.0  # between two checks of the server's version


class _OneServer:
    """The reference server, with the interface of `LaunchedServers`. A restart does not change its URL."""

    def __init__(self, url: str, beat: Callable[[], object]):
        self.present = [Joining("reference", url)]
        self.latest = self.present
        self.refresh = beat


class ReferenceUpdates:
    """The updates of the reference server.

    address: address of this machine for the server.
    beat: called during every wait for an answer.
    """

    def __init__(
        self,
        config: RunConfig,
        url: str,
        token: str | None,
        manifest: WeightManifest,
        checkpoints: Checkpoints,
        address: str,
        beat: Callable[[], object],
    ):
        self._config = config
        self._manifest = manifest
        self._checkpoints = checkpoints
        self._servers = Servers(_OneServer(url, beat), token)
        (self._server,) = self._servers.all
        self._run = secrets.token_hex(8)
        backend = "nccl" if config.device == "cuda" else "gloo"
        address = config.weights.master_address or address
        self._groups = WeightGroups(self._run, self._servers, address, backend)
        usual = usual_bucket_bytes(manifest.total_bytes, backend)
        self._bucket_bytes = config.weights.bucket_bytes or usual
        self._packer = BucketPacker() if backend == "gloo" else None
        self._failures = 0  # consecutive failed updates
        self._next_poll = 0.0

    @property
    def total_bytes(self) -> int:
        return self._manifest.total_bytes

    def is_kept(self, version: int) -> bool:
        return self._checkpoints.reference(version).exists()

    def keep(self, version: int, weights: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Writes the weights, in the dtypes of the manifest, to the file of `version`.

        Removes the files that no complete checkpoint needs. Must not be called while a checkpoint is written.
        """
        dtypes = {parameter.name: torch_dtype(parameter.dtype) for parameter in self._manifest.parameters}
        kept = {name: tensor.detach().to("cpu", dtypes[name], copy=True) for name, tensor in weights}
        file = self._checkpoints.reference(version)
        file.parent.mkdir(parents=True, exist_ok=True)
        with replaced_atomically(file) as unfinished:
            torch.save(kept, unfinished)
        positions = self._checkpoints.complete_checkpoints()
        version_at = self._config.reference.version_at
        self._checkpoints.discard_references({version, *(version_at(p.version) for p in positions)})

    def tend(self, version: int) -> None:
        """Sends the weights of `version` if the server is ready and serves another version.

        Polls the server, and repeats a failed update, at most every `POLL_EVERY_S`. Raises GaveUpError if an
        update cannot succeed, or after `MOST_FAILURES` consecutive failures.
        """
        if time.monotonic() < self._next_poll:
            return
        info = self._servers.poll({self._server: OUTSIDER_TIMEOUT_S}).ready.get(self._server)
        if info and (info.weights.version, info.weights.state) != (version, "live"):
            try:
                failure = self._update(info, version)
            finally:
                self._groups.leave()
            self._note(version, failure)
        self._next_poll = time.monotonic() + POLL_EVERY_S

    def check_soon(self) -> None:
        """Makes the next `tend` poll the server immediately."""
        self._next_poll = 0.0

    def close(self) -> None:
        self._groups.leave()
        self._servers.close()

    def _update(self, info: ContractInfo, version: int) -> Exception | None:
        """Makes one update. Returns its error, or None."""
        weights = self._config.weights
        failures = self._groups.form({self._server: info}, rendezvous_s(weights, self._failures > 0))
        if not failures:
            request = self._request(version)
            _, failures = self._servers.ask([self._server], lambda s: s.request_weight_update(request))
        if failures:
            return failures[self._server]
        kept = torch.load(self._checkpoints.reference(version), mmap=True)
        try:
            send_weights(
                self._groups.group,
                self._manifest,
                iter(kept.items()),
                self._bucket_bytes,
                weights.bucket_timeout_s,
                self._packer,
            )
        except PeerLostError as error:
            return PeerLostError(str(error), error.timed_out)  # the original would reference the group
        return self._end(version)

    def _end(self, version: int) -> Exception | None:
        """Waits for the end of an update. Returns its error, or None."""
        within_s = broken_end_s(self._config.weights)

        async def ended(server: ServerControl) -> None:
            status = await server.weight_update(version, within_s)
            if status.state != "live":
                raise RuntimeError(f"the update is {status.state}: {status.error}")

        _, failures = self._servers.ask([self._server], ended)
        return failures.get(self._server)

    def _request(self, version: int) -> WeightUpdateRequest:
        return WeightUpdateRequest(
            run=self._run,
            epoch=self._groups.epoch,
            version=version,
            parameters=list(self._manifest.parameters),
            tied=self._manifest.tied,
            bucket_bytes=self._bucket_bytes,
            timeout_s=self._config.weights.bucket_timeout_s,
        )

    def _note(self, version: int, failure: Exception | None) -> None:
        if failure is None:
            self._failures = 0
            log.info("the reference is now version %d", version)
            return
        self._failures += 1
        log.warning("version %d was not sent to the reference server: %s", version, failure)
        if is_hopeless(failure) or self._failures == MOST_FAILURES:
            raise GaveUpError(
                f"the reference server cannot be renewed: {failure}; set reference.renew_every=null, or "
                "another reference"
            )
