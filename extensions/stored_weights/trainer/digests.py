"""Compares what a server says that it serves with what the trainer has published."""

from collections.abc import Mapping

from contracts.inference import WeightsInfo
from pipelinerl.errors import GaveUpError


class DigestMismatchError(GaveUpError):
    """A server serves other weights than those that were published under the version's number."""


def check_digest(url: str, weights: WeightsInfo, run: str, digests: Mapping[int, str]) -> None:
    """Raises DigestMismatchError if the server serves one of these versions with another digest.

    run: the id of the run's life whose versions they are.
    """
    published = digests.get(weights.version)
    if weights.run != run or published is None or weights.digest == published:
        return
    raise DigestMismatchError(
        f"digest_mismatch: {url} serves version {weights.version} with the digest {weights.digest}, and the "
        f"trainer published {published}"
    )
