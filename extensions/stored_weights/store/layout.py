"""The paths of a store's files, relative to its directory or to a source's URL."""

from pathlib import Path

SHORT_NAME = 12  # characters of a digest in names that people read


def object_path(sha256: str) -> str:
    """Returns the path of an immutable file, named by its SHA-256."""
    return f"objects/{sha256}"


def manifest_path(run: str, version: int) -> str:
    """Returns the path of the signed manifest of a version, which is immutable."""
    return f"runs/{run}/{version}.json"


def latest_path(run: str) -> str:
    """Returns the path of the signed name of the newest version, the only mutable file."""
    return f"runs/{run}/latest.json"


def proofs_path(name: str) -> str:
    """Returns the path of a random file by which a server proves that it reads this directory."""
    return f"proofs/{name}"


def stored_versions(store: Path, run: str) -> list[int]:
    """Returns the versions of a run whose manifests are in the directory, in ascending order."""
    names = (path.stem for path in (store / "runs" / run).glob("*.json"))
    return sorted(int(name) for name in names if name.isdigit())
