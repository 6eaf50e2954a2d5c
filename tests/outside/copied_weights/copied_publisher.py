"""The trainer's side: writes each version into the directory, and asks every server to load it."""

import secrets

import torch
from safetensors.torch import save_file

from contracts.channel import ChannelUpdateRequest, InitWeightChannelRequest, PublicKey
from pipelinerl.training.membership.blame import Blame
from pipelinerl.training.publishing.confirming import ConfirmingPublisher

NOTHING = "0" * 64  # requests must have a key and a hash; these files are not signed, and not hashed


class CopiedPublisher(ConfirmingPublisher):
    def __init__(self, config, context, directory):
        super().__init__(config, context)
        self.run = secrets.token_hex(8)
        self._directory = directory
        self._manifest = context.manifest
        self._epoch = 0
        self._members = []
        directory.mkdir(parents=True, exist_ok=True)

    def open(self, version):
        self.begin(version)
        self._members = list(self.candidates.choose(self._members))
        self._epoch += 1
        self._version = version

    def send(self, weights):
        self.phases.begin("send")
        dtypes = {parameter.name: parameter.dtype for parameter in self._manifest.parameters}
        gathered = self.phases.inside("gather", weights)
        cast = {name: tensor.to(getattr(torch, dtypes[name])) for name, tensor in gathered}
        save_file(cast, self._directory / f"{self._version}.safetensors")

    def confirm(self, version):
        self.phases.begin("confirm")
        join = InitWeightChannelRequest(
            run=self.run,
            takeover=True,  # the server may belong to an earlier run
            epoch=self._epoch,
            kind="shared",
            sources=[f"file://{self._directory}"],
            public_keys=[PublicKey(id="none", ed25519=NOTHING)],
        )
        update = ChannelUpdateRequest(
            run=self.run,
            epoch=self._epoch,
            version=version,
            manifest_sha256=NOTHING,
            kv_cache=self._config.inference.kv_cache,
            timeout_s=self._config.weights.live_timeout_s,
        )

        async def load(server):
            await server.init_weight_channel(join)
            await server.request_weight_update(update)
            status = await server.weight_update(version, update.timeout_s)
            if status.state != "live":
                raise RuntimeError(status.error)
            return status

        live, failures = self.servers.ask(self._members, load)
        self.strikes.succeeded(live)
        failures = self.candidates.condemn(failures)
        self.servers.refresh()
        present = frozenset(failures) & set(self.servers.all)  # one that has left is not to blame
        self.candidates.last_failure = "; ".join(f"{s.url}: {failures[s]}" for s in present)
        self.candidates.condemn_failing(self.strikes.failed(Blame(present, certain=True)))
        self.stranded.published(live)
        return self.publication(version, self._manifest.total_bytes, live) if live else None

    def close(self):
        self.servers.close()
