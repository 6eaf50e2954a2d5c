"""The trainer's side: writes each version into the directory, and asks every server to load it."""

import hashlib
import itertools
import os
import secrets

import torch
from safetensors.torch import save_file

from contracts.channel import ChannelUpdateRequest, InitWeightChannelRequest, PublicKey
from pipelinerl.training.membership.blame import Blame
from pipelinerl.training.publishing.confirming import ConfirmingPublisher

NO_KEY = PublicKey(id="none", ed25519="0" * 64)  # the request must have one, and these files are not signed


class CopiedPublisher(ConfirmingPublisher):
    def __init__(self, config, context, directory):
        super().__init__(config, context)
        self.run = secrets.token_hex(8)
        self._directory = directory
        self._manifest = context.manifest
        self._epochs = itertools.count(1)
        self._joined = {}  # servers in the channel, with their epochs
        self._members = []  # servers that get the version
        directory.mkdir(parents=True, exist_ok=True)

    def open(self, version):
        self._begin(version)
        self._path = self._directory / f"{version}.safetensors"
        while True:
            self._members = list(self._candidates.choose(self._members))
            failures = self._join([server for server in self._members if server not in self._joined])
            if not failures:
                return
            self._leave_out(self._candidates.condemn(failures))

    def _join(self, servers):
        requests = {server: self._request() for server in servers}
        joined, failures = self._servers.ask(servers, lambda s: s.init_weight_channel(requests[s]))
        self._joined |= {server: requests[server].epoch for server in joined}
        return failures

    def _request(self):
        return InitWeightChannelRequest(
            run=self.run,
            takeover=True,  # the server may belong to an earlier run
            epoch=next(self._epochs),
            kind="shared",
            sources=[f"file://{self._directory}"],
            public_keys=[NO_KEY],
        )

    def send(self, weights):
        self._phases.begin("send")
        dtypes = {parameter.name: parameter.dtype for parameter in self._manifest.parameters}
        tensors = self._phases.inside("gather", weights)
        cast = {name: tensor.to(getattr(torch, dtypes[name])) for name, tensor in tensors}
        part = self._path.with_suffix(".part")
        save_file(cast, part)
        os.replace(part, self._path)

    def confirm(self, version):
        self._phases.begin("confirm")
        sha256 = hashlib.sha256(self._path.read_bytes()).hexdigest()
        timeout_s = self._config.weights.live_timeout_s

        async def update(server):
            request = ChannelUpdateRequest(
                run=self.run,
                epoch=self._joined[server],
                version=version,
                manifest_sha256=sha256,
                kv_cache=self._config.inference.kv_cache,
                timeout_s=timeout_s,
            )
            await server.request_weight_update(request)
            return await server.weight_update(version, timeout_s)

        statuses, failures = self._servers.ask(self._members, update)
        for server, status in statuses.items():
            if status.state != "live":
                self._candidates.last_failure = f"{server.url}: {status.error}"
        live = {server: status for server, status in statuses.items() if status.state == "live"}
        self._strikes.succeeded(live)
        self._candidates.condemn(failures)
        self._leave_out([server for server in self._members if server not in live])
        self._stranded.published(live)
        return self._publication(version, self._manifest.total_bytes, live) if live else None

    def _leave_out(self, servers):
        for server in servers:
            self._joined.pop(server, None)
        self._servers.refresh()
        if present := frozenset(servers) & set(self._servers.all):  # one that has left is not to blame
            self._candidates.condemn_failing(self._strikes.failed(Blame(present, certain=True)))

    def close(self):
        self._servers.close()
