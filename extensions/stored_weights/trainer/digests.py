"""Compares the digest of a server's weights with that of the published version."""

from collections.abc import Mapping

from contracts.inference import WeightsInfo
from pipelinerl.errors import GaveUpError


class DigestMismatchError(GaveUpError):
    """Raised if a server's weights differ from the published ones of the same version."""


def check_digest(url: str, weights: WeightsInfo, run: str, digests: Mapping[int, str]) -> None:
    """Raises DigestMismatchError if the server serves one of these versions with another digest.

    run: id of the trainer's session that published them. digests: version -> digest.
    """
    published = digests.get(weights.version)
    if weights.run != run or published is None or weights.digest == published:
        return
    raise DigestMismatchError(
        f"digest_mismatch: {url} serves version {weights.version} with the digest {weights.digest}, and the "
        f"trainer published {published}"
    )
