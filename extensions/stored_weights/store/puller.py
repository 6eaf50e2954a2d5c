"""Finds, fetches, verifies and assembles the versions of one run, for a server's relay channel."""

import asyncio
import shutil
from collections.abc import Collection, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from contracts.channel import PublicKey, PullProgress, SourceInfo
from contracts.support.files import is_disk_full
from extensions.stored_weights.store.assembly import AssembledVersion, version_name
from extensions.stored_weights.store.directory import Claim, DirectoryInUseError, WeightDirectory
from extensions.stored_weights.store.errors import (
    BadDigestError,
    GoneError,
    NoBaseError,
    NoSpaceError,
    StoreError,
)
from extensions.stored_weights.store.fetcher import Fetcher
from extensions.stored_weights.store.latest import LatestWatch
from extensions.stored_weights.store.manifest import LatestVersion, VersionManifest
from extensions.stored_weights.store.manifests import ManifestReader, Manifests
from extensions.stored_weights.store.plan import (
    Plan,
    best_plan,
    delta_of,
    files_of,
    is_worth_extending,
    missing_bytes,
)
from extensions.stored_weights.store.rules import PullRules
from extensions.stored_weights.store.signing import Verifier
from extensions.stored_weights.store.source_client import SourceClient
from extensions.stored_weights.store.sources import Sources
from extensions.stored_weights.store.worker_thread import in_thread

__all__ = ["AssembledVersion", "DirectoryInUseError", "PullProgress", "PullRules", "Puller"]

LINK_S = 5.0  # timeout for the manifest of a base, if the version can be assembled without it

Result = TypeVar("Result")


class Puller:
    """Finds, fetches and verifies the versions of one run.

    All its coroutines run in one event loop, which they block while they hash. Several pullers of a process
    may share a directory.
    """

    def __init__(
        self,
        run: str,
        keys: Sequence[PublicKey],
        sources: Sequence[str],
        directory: Path,
        shapes: Mapping[str, tuple[int, ...]] | None,
        tied: Mapping[str, str],
        rules: PullRules,
    ):
        """shapes: of the model; None takes those of the manifest.

        Raises ValueError for a bad key, and DirectoryInUseError if another process uses the directory."""
        verifier = Verifier(keys)
        self._path = directory
        self._client = SourceClient(Sources(sources), rules)
        self._latest = LatestWatch(self._client, verifier, run)
        self._manifests = Manifests(self._client, ManifestReader(verifier, run, shapes, tied))
        self._directory = WeightDirectory.open(directory)
        self._fetcher = Fetcher(self._client, self._directory.objects)
        self._kept: dict[int, VersionManifest] = {}  # fetched versions that `keep` has not dropped
        self._current: Plan | None = None  # plan of the version that is being fetched
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False

    @property
    def seen_at(self) -> float | None:
        """The monotonic time at which a newer signed `latest.json` was last seen."""
        return self._latest.seen_at

    def sources_info(self) -> list[SourceInfo]:
        """Returns the statistics of each source."""
        return [source.info() for source in self._client.sources.all]

    async def poll(self) -> LatestVersion | None:
        """Returns the newest version if it is newer than the last returned one, or None.

        A source that hangs does not delay it if another one responds.
        """
        return await self._run(self._latest.poll())

    async def manifest(self, version: int, manifest_sha256: str) -> VersionManifest:
        """Returns the verified manifest of a version.

        Raises GoneError or NoSourceError, which are temporary, or another StoreError.
        """
        return await self._run(self._manifests.named(version, manifest_sha256))

    async def fetch(self, manifest: VersionManifest, progress: PullProgress) -> AssembledVersion:
        """Fetches the missing files of a version, and returns it assembled and verified.

        Raises BadDigestError if the version is invalid, and another StoreError if a retry may succeed. If it
        is cancelled, it ends after all writing has stopped.
        """
        return await self._run(self._fetch_exclusively(manifest, progress))

    def keep(self, versions: Collection[int]) -> None:
        """Deletes all files that these versions, and the one that is being fetched, do not need.

        Does nothing before the first fetch, which may use files of an earlier process.
        """
        if not self._kept:
            return
        self._kept = {number: each for number, each in self._kept.items() if number in versions}
        self._claim()
        self._directory.sweep()

    async def close(self) -> None:
        """Cancels all work, and unlocks the directory. Pending calls raise StoreError."""
        if self._closed:
            return
        self._closed = True
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        await self._latest.close()
        await self._client.close()
        self._directory.close(self)

    async def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Returns the result of `work`, which `close` cancels."""
        if self._closed:
            work.close()
            raise StoreError("the puller is closed")
        task = asyncio.create_task(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            return await task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if caller is not None and caller.cancelling():
                raise
            raise StoreError("the puller was closed") from None

    async def _fetch_exclusively(self, manifest: VersionManifest, progress: PullProgress) -> AssembledVersion:
        try:
            async with self._directory.exclusive_fetch():
                return await self._fetch(manifest, progress)
        except OSError as error:
            if is_disk_full(error):
                raise NoSpaceError(f"{self._path}: {error.strerror}") from error
            raise StoreError(f"{self._path}: {error}") from error
        finally:
            self._current = None

    async def _fetch(self, manifest: VersionManifest, progress: PullProgress) -> AssembledVersion:
        self._current = Plan(manifest, manifest, False, ())
        self._claim()
        assembled = await in_thread(partial(self._directory.versions.verified, manifest))
        if assembled is None:
            assembled = await self._make(manifest, progress)
        else:
            progress.bytes_total = progress.bytes_done = manifest.total_bytes
        self._kept[manifest.version] = manifest
        return assembled

    async def _make(self, manifest: VersionManifest, progress: PullProgress) -> AssembledVersion:
        """Assembles the version by the cheapest plan. If its deltas fail, uses the version's full files."""
        plan = await self._plan(manifest)
        try:
            return await self._carry_out(plan, progress)
        except (BadDigestError, GoneError):
            if not plan.deltas or manifest.full is None:
                raise
        return await self._carry_out(Plan(manifest, manifest, False, ()), progress)

    async def _plan(self, manifest: VersionManifest) -> Plan:
        """Returns the cheapest plan. If its root is assembled locally, verifies the root."""
        versions = self._directory.versions
        while True:
            assembled = versions.by_digest()
            chain = await self._chain(manifest, assembled)
            plan = best_plan(chain, assembled.keys(), self._directory.objects.bytes_here)
            self._current = plan
            self._claim()
            if not plan.root_is_here or await in_thread(partial(versions.is_sound, plan.root.digest)):
                return plan

    async def _chain(
        self, manifest: VersionManifest, assembled: Mapping[str, VersionManifest]
    ) -> list[VersionManifest]:
        """Returns the manifests of the version, its base, the base's base and so on, as far as useful."""
        chain = [manifest]
        here = self._directory.objects.bytes_here
        while is_worth_extending(chain, assembled.keys(), here):
            base = assembled.get(delta_of(chain[-1]).base_digest)
            try:
                chain.append(base or await self._base(chain))
            except (StoreError, TimeoutError) as error:
                if all(each.full is None for each in chain):
                    raise NoBaseError(f"the base of version {chain[-1].version}: {error}") from error
                break
        return chain

    async def _base(self, chain: Sequence[VersionManifest]) -> VersionManifest:
        """Returns the manifest of the last one's base. Raises StoreError or TimeoutError."""
        delta = delta_of(chain[-1])
        has_another_way = any(each.full is not None for each in chain)
        async with asyncio.timeout(LINK_S if has_another_way else None):
            return await self._manifests.before(delta.base_version, delta.base_digest)

    async def _carry_out(self, plan: Plan, progress: PullProgress) -> AssembledVersion:
        self._current = plan
        self._claim()
        self._make_space(plan)
        await self._fetcher.fetch(plan.files, progress)
        try:
            return await in_thread(partial(self._directory.versions.assemble, plan))
        except BadDigestError as error:
            if not await self._are_intact(plan):
                raise StoreError(f"{self._path}: files were altered while they were used") from error
            raise

    async def _are_intact(self, plan: Plan) -> bool:
        """Hashes all files of a plan again. Returns True if they are intact."""
        objects = self._directory.objects
        objects.distrust(plan.files)
        here = [await objects.is_here(wanted) for wanted in plan.files]
        if plan.root_is_here:
            here.append(await in_thread(partial(self._directory.versions.is_sound, plan.root.digest)))
        return all(here)

    def _make_space(self, plan: Plan) -> None:
        """Deletes unclaimed files if the disk is too full. Raises NoSpaceError if that is not enough."""
        needed = missing_bytes(plan, self._directory.objects.bytes_here)
        if plan.deltas:
            needed += plan.root.total_bytes
        if shutil.disk_usage(self._path).free < needed:
            self._directory.sweep()
        free = shutil.disk_usage(self._path).free
        if free < needed:
            raise NoSpaceError(f"{self._path} has {free} bytes free, and {needed} are needed")

    def _claim(self) -> None:
        kept = list(self._kept.values())
        objects = {file.sha256 for manifest in kept for file in files_of(manifest)}
        plan = self._current
        if plan is not None:
            kept += [plan.root, plan.target]
            objects |= {file.sha256 for file in [*plan.files, *files_of(plan.target)]}
        self._directory.claim(self, Claim({version_name(each) for each in kept}, objects))
