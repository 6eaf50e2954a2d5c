"""Broken servers. G12 to G16: weights that come from a store."""

import asyncio
import contextlib
import hashlib

import aiohttp

from extensions.stored_weights.server import relay
from extensions.stored_weights.server.follower import Follower
from extensions.stored_weights.server.joined_channel import JoinedChannel
from extensions.stored_weights.server.loop_thread import LoopThread
from extensions.stored_weights.server.relay import RelayChannel
from extensions.stored_weights.store import manifest as manifests
from extensions.stored_weights.store import puller, tensor_check
from extensions.stored_weights.store.assembly import AssembledVersions
from extensions.stored_weights.store.delta_writer import DeltaWriter
from extensions.stored_weights.store.latest import LatestWatch
from extensions.stored_weights.store.object_files import ObjectFiles
from extensions.stored_weights.store.part_file import PartFile
from extensions.stored_weights.store.rules import PullRules
from extensions.stored_weights.store.shared import SharedStore
from extensions.stored_weights.store.signing import Verifier, _parts
from extensions.stored_weights.store.sources import Sources
from extensions.stored_weights.store.tensor_check import TensorCheck, tensor_entries
from inference_adapters.scripted import WEIGHT, ScriptedEngine
from inference_adapters.update_ledger import UpdateLedger
from tests.conformance.broken_servers.mutants import mutant

HOUR_S = 3600.0

# --- G8: endurance


@mutant("G8", "file descriptors: .* versions were pulled", part="channels")
def keeps_a_descriptor_of_each_file_that_it_fetches(options):
    PartFile.close = lambda self: None


@mutant("G8", "(threads|file descriptors): .* channels were joined", part="channels")
def keeps_the_thread_of_each_channel(options):
    async def close(self):
        pass

    LoopThread.close = close


# --- G12: store content


@mutant("G12", "requests for files of version", part="relay")
def fetches_everything_again(options):
    async def is_here(self, wanted):
        self.path(wanted.sha256).unlink(missing_ok=True)
        return False

    ObjectFiles.is_here = is_here


@mutant("G12", "log-probability|greedy token|labels", part="relay")
def applies_deltas_in_place_twice(options):
    """The second time undoes what few elements the first one has changed."""
    right = DeltaWriter.apply

    def apply(self, path, parameters, names):
        right(self, path, parameters, names)
        right(self, path, parameters, names)

    DeltaWriter.apply = apply
    looks_at_no_delta()


def looks_at_no_delta():
    """Leaves the bytes of versions without full files unchecked."""
    right = TensorCheck.check

    def check(self, paths, manifest, stop):
        if manifest.full is None:
            return {path.name: [entry.name for entry in tensor_entries(path)] for path in paths}
        return right(self, paths, manifest, stop)

    TensorCheck.check = check


# --- G13: skipping


@mutant("G13", "log-probability|greedy token", part="following")
class MixesTwoVersions(ScriptedEngine):
    """Keeps a matrix of the live version if a version was skipped."""

    def apply_weights(self, tensors, tied, version, kv_cache):
        if 1 <= self._version < version - 1:
            tensors = {**tensors, WEIGHT: self._weights[WEIGHT].clone()}
        super().apply_weights(tensors, tied, version, kv_cache)


@mutant("G13", "labelled .*log-probability", part="following")
class LabelsBeforeApplying(ScriptedEngine):
    async def load_weights(self, update, progress):
        self._version = update.version
        await asyncio.sleep(2)
        await super().load_weights(update, progress)


@mutant("G13", "ended as .*failed", part="following")
def calls_a_skipped_version_failed(options):
    right = UpdateLedger._record_unsuccessful

    def end(self, update, why, skipped):
        right(self, update, why, False)

    UpdateLedger._record_unsuccessful = end


@mutant("G13", "version 7|/weight_update/7", part="following")
def completes_every_version(options):
    """Waits for the version that it is pulling, however long that takes."""
    Follower._is_early = lambda self, record: False

    async def newer_within(self, pause_s):
        await asyncio.sleep(pause_s)
        return False

    Follower._newer_within = newer_within


# --- G14: integrity


@mutant("G14", "one bit of each file differs", part="transfers")
def skips_the_object_hash(options):
    PartFile.is_right = property(lambda self: self.missing == 0)
    ObjectFiles.is_here = _exists


async def _exists(self, wanted):
    return self.path(wanted.sha256).exists()


@mutant("G14", "other content", part="versions")
def skips_the_digest(options):
    tensor_check._check_bytes = lambda path, entries, expected, stop: None


@mutant("G14", "a delta on a base that the server does not have", part="versions")
def applies_a_delta_to_any_base(options):
    """Takes the newest version that is here for the base."""
    by_digest = AssembledVersions.by_digest
    delta_of = puller.delta_of
    here = {}

    def note(self):
        here.clear()
        here.update(by_digest(self))
        return dict(here)

    def to_any(manifest):
        delta = delta_of(manifest)
        if delta.base_digest in here or not here:
            return delta
        newest = max(here.values(), key=lambda each: each.version)
        return delta.model_copy(update={"base_digest": newest.digest})

    AssembledVersions.by_digest = note
    puller.delta_of = to_any
    looks_at_no_delta()


@mutant("G14", "without a signature|another key|was changed after", part="versions")
def trusts_unsigned(options):
    Verifier.open = lambda self, envelope, payload_type: _parts(envelope)[0]


@mutant("G14", "a latest.json of an older version", part="latest")
def follows_a_replayed_latest(options):
    def take(self, state, latest):
        self.newest = state.latest = latest

    def newer(self):
        return self.newest if self.newest and self.newest.version != self._returned else None

    LatestWatch._take = take
    LatestWatch._newer = newer
    Follower._is_newer = lambda self, latest: latest != self._newest
    UpdateLedger.is_older = lambda self, version: False


@mutant("G14", "more requests for files of a version that is bad|/weight_update/.*receiving", part="latest")
def retries_the_bad_version(options):
    """Takes what is proven for a passing cause."""

    async def to_the_end(self, record):
        while True:
            self._pulled = record
            self._ledger.begin(record, self._obtain(record))
            await record.wait()
            if record.outcome.state == "live" or record.cancel_reason or await self._newer_within(0.1):
                return
            record = self._record_of(self._newest)

    Follower._to_the_end = to_the_end


@mutant("G14", "outside the server's own directory|name is a path", part="versions")
def writes_outside_its_directory(options):
    manifests.ModelFile.model_fields["name"].metadata.clear()
    manifests.ModelFile.model_rebuild(force=True)
    manifests.VersionManifest.model_rebuild(force=True)


@mutant("G14", "redirects elsewhere|to which a source redirected", part="transfers")
def follows_redirects(options):
    right = aiohttp.ClientSession.get

    def get(self, url, **settings):
        return right(self, url, **(settings | {"allow_redirects": True}))

    aiohttp.ClientSession.get = get


# --- G15: resume


@mutant("G15", "times the bytes of version", part="deaths")
def starts_over_each_time(options):
    right = ObjectFiles.open_part

    def open_part(self, wanted, progress):
        self.drop_part(wanted)
        return right(self, wanted, progress)

    ObjectFiles.open_part = open_part


@mutant("G15", "/weight_update/|ended as", part="hangs")
def waits_for_the_source_that_hangs(options):
    """Asks the first source first, so that no chance spares it one that hangs."""
    relay.PullRules = lambda poll_s, idle_timeout_s, min_bytes_per_s: PullRules(poll_s, HOUR_S, 0)
    right = Sources.pick

    def pick(self, now, name, refused=()):
        first = self.all[0]
        asked = first in refused or first.running
        return right(self, now, name, refused) if asked else first

    Sources.pick = pick


# --- G16: undisturbed


@mutant("G16", "no answer within", part="pulls")
def stops_while_it_pulls(options):
    right = RelayChannel.fetch

    async def fetch(self, record):
        await self._engine._set_paused(True)
        try:
            return await right(self, record)
        finally:
            await self._engine._set_paused(False)

    RelayChannel.fetch = fetch


@mutant("G16", "^200 .*proof|has the proof", part="refusals")
def shares_without_looking(options):
    right = SharedStore.proof

    def proof(self, name):
        with contextlib.suppress(Exception):
            return right(self, name)
        return hashlib.sha256(b"").hexdigest()

    SharedStore.proof = proof


@mutant("G16", "requests to a source of a channel that was replaced", part="replaced")
def keeps_the_old_channel(options):
    async def close(self, why):
        self._channel.left = True

    JoinedChannel.close = close
