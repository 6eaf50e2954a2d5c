"""The ways in which a stored version cannot be used."""


class StoreError(Exception):
    """A version or a file that cannot be used. `word` begins the `error` of a weight update."""

    word = "store"

    @property
    def reason(self) -> str:
        """The message without the word."""
        return super().__str__()

    def __str__(self) -> str:
        return f"{self.word}: {self.reason}"


class BadSignatureError(StoreError):
    """A manifest that no known key has signed, or that belongs to another run."""

    word = "signature"


class BadManifestError(StoreError):
    """A manifest that is too large, malformed, or not the one that was named."""

    word = "manifest"


class BadDigestError(StoreError):
    """Bytes that are not those that the manifest names. The version is never tried again."""

    word = "digest"


class NoBaseError(StoreError):
    """A delta whose base is not here, in a version without full weights."""

    word = "base"


class NoSourceError(StoreError):
    """No source gave the file now. It may be tried again later."""

    word = "no_source"


class GoneError(StoreError):
    """Every source answered that it does not have the file."""

    word = "gone"


class NoSpaceError(StoreError):
    """The disk is full, or the version is larger than the directory may hold."""

    word = "no_space"
