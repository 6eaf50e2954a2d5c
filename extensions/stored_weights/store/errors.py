"""The errors of a store."""


class StoreError(Exception):
    """Raised if a version or a file cannot be used. `word` is the prefix of a weight update's `error`."""

    word = "store"

    @property
    def reason(self) -> str:
        """The message without the prefix."""
        return super().__str__()

    def __str__(self) -> str:
        return f"{self.word}: {self.reason}"


class BadSignatureError(StoreError):
    """Raised for a manifest that no known key has signed, or that belongs to another run."""

    word = "signature"


class BadManifestError(StoreError):
    """Raised for a manifest that is too large, malformed, or not the requested one."""

    word = "manifest"


class BadDigestError(StoreError):
    """Raised if bytes do not have the SHA-256 of the manifest. The version is not retried."""

    word = "digest"


class NoBaseError(StoreError):
    """Raised if the base of a delta is not available, and the version has no full weights."""

    word = "base"


class NoSourceError(StoreError):
    """Raised if no source sent the file. A retry may succeed."""

    word = "no_source"


class GoneError(StoreError):
    """Raised if every source responded that it does not have the file."""

    word = "gone"


class NoSpaceError(StoreError):
    """Raised if the disk has no space for the version."""

    word = "no_space"
