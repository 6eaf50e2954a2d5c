"""Which files a version is made of."""

import hashlib

import pytest

from extensions.stored_weights.store.errors import NoBaseError
from extensions.stored_weights.store.manifest import (
    DeltaWeights,
    FullWeights,
    StoredFile,
    StoredParameter,
    VersionManifest,
    digest_of,
)
from extensions.stored_weights.store.plan import MAX_DELTAS, best_plan, is_worth_extending

FULL_BYTES = 1000
FILES = 4


def named(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def manifest(version: int, full: bool = False, delta_bytes: int | None = None) -> VersionManifest:
    """Returns a version of four parameters in as many files. Its delta is against the version before."""

    def parameters(of: int) -> list[StoredParameter]:
        return [
            StoredParameter(name=f"p{i}", dtype="bfloat16", shape=(4,), sha256=named(f"{of} {i}"))
            for i in range(FILES)
        ]

    files = [
        StoredFile(sha256=named(f"full {version} {i}"), bytes=FULL_BYTES // FILES, names=[f"p{i}"])
        for i in range(FILES)
    ]
    delta = None
    if delta_bytes is not None:
        changes = StoredFile(sha256=named(f"delta {version}"), bytes=delta_bytes, names=["p0"])
        base = digest_of(parameters(version - 1), {})
        delta = DeltaWeights(base_version=version - 1, base_digest=base, files=[changes])
    return VersionManifest(
        run="run",
        epoch=1,
        version=version,
        parameters=parameters(version),
        digest=digest_of(parameters(version), {}),
        full=FullWeights(files=files) if full else None,
        delta=delta,
    )


def nothing_here(wanted):
    return 0


def chosen(chain, assembled=(), here=nothing_here) -> tuple[int, list[int]]:
    """Returns the root's version, negative if it is taken from the disk, and those of the deltas."""
    plan = best_plan(chain, [each.digest for each in assembled], here)
    root = -plan.root.version if plan.root_is_here else plan.root.version
    return root, [each.version for each in plan.deltas]


BASE = manifest(3, full=True)
BEFORE = manifest(4, full=True)
SMALL = manifest(5, full=True, delta_bytes=10)
LARGE = manifest(5, full=True, delta_bytes=300)
MOSTLY = {file.sha256 for file in LARGE.full.files[:3]}
CHOSEN = {
    "full files without a base": ([SMALL], [], nothing_here, (5, [])),
    "a delta on an assembled base": ([SMALL, BEFORE], [BEFORE], nothing_here, (-4, [5])),
    "a chain": ([SMALL, manifest(4, delta_bytes=10), BASE], [BASE], nothing_here, (-3, [4, 5])),
    "full files mostly here": ([LARGE, BEFORE], [BEFORE], lambda w: w.bytes * (w.sha256 in MOSTLY), (5, [])),
    "unfinished files": ([LARGE, BEFORE], [BEFORE], lambda w: 200 * (w.bytes == 250), (5, [])),
    "the same weights under another number": ([BEFORE], [BEFORE], nothing_here, (-4, [])),
}


@pytest.mark.parametrize("case", CHOSEN)
def test_the_cheapest_way_is_chosen(case):
    chain, assembled, here, expected = CHOSEN[case]
    assert chosen(chain, assembled, here) == expected


def test_without_a_base_here_a_chain_begins_with_earlier_full_files():
    chain = [manifest(5, delta_bytes=10), manifest(4, delta_bytes=10), manifest(3, full=True)]
    assert chosen(chain) == (3, [4, 5])
    plan = best_plan(chain, [], nothing_here)
    assert sum(wanted.bytes for wanted in plan.files) == FULL_BYTES + 20


def test_a_delta_without_any_base_is_refused_in_one_line():
    with pytest.raises(NoBaseError, match="^base: version 5 has no full weights, and no base of its delta"):
        best_plan([manifest(5, delta_bytes=10), manifest(4, delta_bytes=10)], [], nothing_here)


def test_a_chain_is_followed_only_as_long_as_it_may_be_cheaper():
    base = manifest(4, full=True)
    worth = manifest(5, full=True, delta_bytes=10)
    assert is_worth_extending([worth], [], nothing_here)
    assert not is_worth_extending([worth, base], [base.digest], nothing_here)
    assert not is_worth_extending([manifest(5, full=True)], [], nothing_here)
    assert not is_worth_extending([manifest(5, full=True, delta_bytes=1000)], [], nothing_here)
    assert is_worth_extending([manifest(5, delta_bytes=2000)], [], nothing_here)
    endless = [manifest(version, delta_bytes=1) for version in range(MAX_DELTAS + 1, 0, -1)]
    assert not is_worth_extending(endless, [], nothing_here)
