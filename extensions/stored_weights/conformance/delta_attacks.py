"""Deltas that no server may apply, because of their base, their result or their bytes, for G14."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import zstandard

from extensions.stored_weights.conformance.attacks import OTHER, Attack, field_of, like
from extensions.stored_weights.conformance.bench import StoreBench
from extensions.stored_weights.conformance.store import Offer, parameter_of
from extensions.stored_weights.conformance.variants import nudged
from extensions.stored_weights.store.manifest import digest_of

BOMB = 2**28  # decompressed size of a small file


def delta_attacks(base: Offer) -> list[Attack]:
    """Returns the attacks by deltas. `base`: a version of the servers."""

    def wrong_base(at: StoreBench, version: int) -> Offer:
        other = like(at.fresh(base.version + OTHER), base.weights)
        parameters = tuple(parameter_of(name, tensor) for name, tensor in other.items())
        digest = digest_of(parameters, at.store.tied)
        pretended = replace(base, weights=other, parameters=parameters, digest=digest)
        return at.offer(version, nudged(other, version), base=pretended, full=False)

    def wrong_result(at: StoreBench, version: int) -> Offer:
        new = like(at.fresh(version), base.weights)
        other = like(at.fresh(version + OTHER), base.weights)
        right = at.store.offer(version, other, epoch=at.run.epoch, base=base, full=False)
        return at.offer(
            version, new, base=base, full=False, change=field_of("delta", right.manifest["delta"])
        )

    def packed(data: bytes) -> Callable[[StoreBench, int], Offer]:
        def make(at: StoreBench, version: int) -> Offer:
            def change(manifest: dict[str, Any]) -> dict[str, Any]:
                file = {"sha256": at.store.put_object(data), "bytes": len(data)}
                delta = manifest["delta"]
                return manifest | {"delta": delta | {"files": [delta["files"][0] | file]}}

            new = like(at.fresh(version), base.weights)
            return at.offer(version, new, base=base, full=False, change=change)

        return make

    return [
        Attack("a delta on a base that the server does not have", wrong_base, may_pass=True, ends="failed"),
        Attack("a delta to other content than the manifest's digest", wrong_result),
        Attack("a delta that is no compressed file", packed(b"no delta" * 8)),
        Attack("a small delta that unpacks to 256 MiB", packed(zstandard.compress(bytes(BOMB)))),
    ]
