"""Chooses the files from which a version is assembled, so that the fewest bytes have to be fetched.

The root of a plan is an assembled version, or a version whose full files are fetched. A chain of deltas may
be applied to it. This module reads no files.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from extensions.stored_weights.store.errors import NoBaseError
from extensions.stored_weights.store.manifest import DeltaWeights, ModelFile, StoredFile, VersionManifest
from extensions.stored_weights.store.part_file import Wanted

MAX_DELTAS = 64  # maximum length of a chain

BytesHere = Callable[[Wanted], int]  # returns the number of local bytes of a file


@dataclass(frozen=True)
class Plan:
    """A way to assemble a version: a root, and the deltas that are applied to a copy of it."""

    target: VersionManifest
    root: VersionManifest
    root_is_here: bool  # True if the root is assembled locally; otherwise its full files are used
    deltas: tuple[VersionManifest, ...]  # in the order of application; the last is the target

    @property
    def full_files(self) -> list[StoredFile]:
        """The full files of the root, or an empty list if it is assembled locally."""
        return [] if self.root_is_here or self.root.full is None else self.root.full.files

    @property
    def files(self) -> list[Wanted]:
        """All files that the plan needs, each once."""
        deltas = [file for manifest in self.deltas for file in delta_of(manifest).files]
        return _each_once([*self.full_files, *deltas, *self.target.model_files])

    @property
    def changed_names(self) -> set[str]:
        """The names of the parameters that the deltas change."""
        return {name for m in self.deltas for file in delta_of(m).files for name in file.names}


def delta_of(manifest: VersionManifest) -> DeltaWeights:
    """Returns the delta of a manifest. Raises NoBaseError if it has none."""
    if manifest.delta is None:
        raise NoBaseError(f"version {manifest.version} has no delta")
    return manifest.delta


def files_of(manifest: VersionManifest) -> list[Wanted]:
    """Returns all files that the manifest names, each once."""
    full = [] if manifest.full is None else manifest.full.files
    delta = [] if manifest.delta is None else manifest.delta.files
    return _each_once([*full, *delta, *manifest.model_files])


def best_plan(chain: Sequence[VersionManifest], assembled: Collection[str], bytes_here: BytesHere) -> Plan:
    """Returns the plan with the fewest missing bytes, and among equal ones the one with the fewest deltas.

    `chain` begins with the target, and each further manifest is the base of the one before it. `assembled`
    are the digests of the assembled versions. Raises NoBaseError if there is no plan.
    """
    plans = _plans(chain, assembled)
    if not plans:
        target = chain[0]
        raise NoBaseError(f"version {target.version} has no full weights, and no base of its delta is here")
    return min(plans, key=lambda plan: missing_bytes(plan, bytes_here))


def is_worth_extending(
    chain: Sequence[VersionManifest], assembled: Collection[str], bytes_here: BytesHere
) -> bool:
    """Returns True if adding the base of the last manifest may lead to a better plan."""
    if chain[-1].delta is None or len(chain) > MAX_DELTAS:
        return False
    deltas = Plan(chain[0], chain[-1], True, tuple(reversed(chain)))
    plans = _plans(chain, assembled)
    best = min((missing_bytes(plan, bytes_here) for plan in plans), default=None)
    return best is None or missing_bytes(deltas, bytes_here) < best


def missing_bytes(plan: Plan, bytes_here: BytesHere) -> int:
    """Returns the number of bytes that the plan has to fetch."""
    return sum(wanted.bytes - bytes_here(wanted) for wanted in plan.files)


def _plans(chain: Sequence[VersionManifest], assembled: Collection[str]) -> list[Plan]:
    """Returns all plans, in the order of their number of deltas."""
    plans = []
    for deltas, root in enumerate(chain):
        applied = tuple(reversed(chain[:deltas]))
        if root.digest in assembled:
            plans.append(Plan(chain[0], root, True, applied))
        if root.full is not None:
            plans.append(Plan(chain[0], root, False, applied))
    return plans


def _each_once(files: Iterable[StoredFile | ModelFile]) -> list[Wanted]:
    wanted = {file.sha256: Wanted(file.sha256, file.bytes) for file in files}
    return list(wanted.values())
